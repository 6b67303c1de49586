"""The CUDA sources on the host: a runtime whose kernels are compiled by g++ with `cuda_on_cpu.h` and run by fibres.

Every array is copied between margins of 0xff (NaN, -1) before a launch and back after it: what is read beside it
spoils the result, what is written beside it is an error.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from hwbackend.kernels.sources import kernel_names, options, source

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
COMPILER = shutil.which("g++")
_MARGIN = 512
_CACHE = Path(tempfile.gettempdir()) / "servetwin-kernels-on-cpu"


class KernelFaultError(Exception):
    """What the fibres ran into."""


class CpuRuntime:
    """`hwbackend.kernels.launch.Runtime` on the host.

    `order` of the fibres: 0: warps in step; 1: each runs ahead as far as it can; 2: the same, last ones first.
    """

    xp = np

    def __init__(self, num_multiprocessors: int = 2, order: int = 0) -> None:
        self.num_multiprocessors = num_multiprocessors
        self.order = order
        self.launches: list[tuple[str, tuple[int, ...]]] = []

    def kernel(self, source_name, name, **defines):
        function = getattr(_library(source_name, options(defines)), f"launch_{name}")
        function.restype = ctypes.c_char_p

        def launch(grid, block, args, *, shared_bytes=0):
            self.launches.append((name, grid))
            dims = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block))]
            with _Memory() as memory:
                pointers = [memory.address(arg) for arg in args]
                fault = function(
                    (ctypes.c_uint * 6)(*dims),
                    ctypes.c_uint(shared_bytes),
                    ctypes.c_int(self.order),
                    (ctypes.c_void_p * len(pointers))(*map(ctypes.addressof, pointers)),
                    ctypes.c_int(len(pointers)),
                )
            if fault is not None:
                raise KernelFaultError(f"{name}: {fault.decode()}")

        return launch

    def gemm(self, x, w, out, dtype):
        if dtype == "bfloat16":
            product = _wide(x) @ _wide(w)
            bits = product.view(np.uint32)
            out[:] = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        else:
            out[:] = x.astype(np.float32) @ w.astype(np.float32)

    def gemm_8bit(self, x, w, out):
        out[:] = x.astype(np.int32) @ w.T.astype(np.int32)


def _wide(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


class _Memory:
    """Arrays between margins, one copy for all views of an array, and back at the end."""

    def __init__(self):
        self._copies = {}

    def __enter__(self):
        return self

    def address(self, arg):
        """The 8 or fewer bytes that a kernel's parameter holds."""
        if not isinstance(arg, np.ndarray):
            return ctypes.create_string_buffer(np.asarray(arg).tobytes(), 16)
        owner = arg
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in self._copies:
            assert owner.flags.c_contiguous
            room = np.full(owner.nbytes + 2 * _MARGIN + 16, 0xFF, np.uint8)
            start = _MARGIN + -(room.ctypes.data + _MARGIN) % 16
            room[start : start + owner.nbytes] = np.frombuffer(owner.tobytes(), np.uint8)
            self._copies[id(owner)] = (owner, room, start)
        _, room, start = self._copies[id(owner)]
        return ctypes.c_uint64(room.ctypes.data + start + arg.ctypes.data - owner.ctypes.data)

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        for owner, room, start in self._copies.values():
            end = start + owner.nbytes
            if (room[:start] != 0xFF).any() or (room[end:] != 0xFF).any():
                raise KernelFaultError(f"a write beside an array of {owner.shape}")
            if owner.flags.writeable:
                owner[...] = np.frombuffer(room[start:end].tobytes(), owner.dtype).reshape(owner.shape)


@cache
def _library(name, flags):
    """Compiled once a text and its flags, also between runs."""
    launchers = "".join(
        f'extern "C" const char* launch_{kernel}(const unsigned* dims, unsigned shared, int order, void** args, '
        f"int count) {{ return host::launch({kernel}, dims, shared, order, args, count); }}\n"
        for kernel in kernel_names(name)
    )
    text = HEADER.read_text() + source(name) + "\n" + launchers
    digest = hashlib.sha256("\0".join((text, *flags)).encode()).hexdigest()[:32]
    library = _CACHE / f"{name}-{digest}.so"
    if not library.exists():
        _CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as directory:
            code, built = Path(directory) / "kernel.cpp", Path(directory) / "kernel.so"
            code.write_text(text)
            command = [
                COMPILER,
                "-O2",
                "-march=native",
                "-fno-strict-aliasing",
                "-w",
                "-shared",
                "-fPIC",
                *flags,
            ]
            subprocess.run(
                [*command, str(code), "-o", str(built)], check=True, capture_output=True, text=True
            )
            built.replace(library)
    return ctypes.CDLL(str(library))
