"""CuPy as the runtime of the kernels: NVRTC compiles, cuBLAS multiplies.

CuPy is imported when a runtime is made, not before: this module is read everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from hwbackend.kernels.launch import Grid, Kernel
from hwbackend.kernels.sources import options, source
from hwbackend.ops import Array, Dtype

# cudaDataType_t of the CUDA toolkit (library_types.h).
_CUDA_TYPES: Final[dict[Dtype, int]] = {"float16": 2, "bfloat16": 14}
_CUDA_INT8: Final = 3
_CUDA_INT32: Final = 10
# cublasComputeType_t and cublasGemmAlgo_t (cublas_api.h).
_COMPUTE_FLOAT32: Final = 68
_COMPUTE_INT32: Final = 72
_DEFAULT_ALGORITHM: Final = -1
_FREE_SHARED_BYTES: Final = 48 << 10
"""More than this of dynamic shared memory has to be asked for."""


class CupyRuntime:
    """`hwbackend.kernels.launch.Runtime` of the current device."""

    def __init__(self) -> None:
        self.xp: Any = import_module("cupy")
        self._cublas: Any = import_module("cupy_backends.cuda.libs.cublas")
        self.num_multiprocessors = int(self.xp.cuda.Device().attributes["MultiProcessorCount"])
        self._kernels: dict[tuple[object, ...], Kernel] = {}
        self._one = {np.float32: np.ones(1, np.float32), np.int32: np.ones(1, np.int32)}
        self._zero = {np.float32: np.zeros(1, np.float32), np.int32: np.zeros(1, np.int32)}

    def kernel(self, source_name: str, name: str, /, **defines: int) -> Kernel:
        """Compile at the first call, for the architecture of the device; CuPy keeps the result on disk too."""
        key = (source_name, name, *sorted(defines.items()))
        found = self._kernels.get(key)
        if found is None:
            module = self.xp.RawModule(code=source(source_name), options=options(defines), backend="nvrtc")
            found = self._kernels[key] = _CupyKernel(module.get_function(name))
        return found

    def gemm(self, x: Array, w: Array, out: Array, dtype: Dtype) -> None:
        """Ask cuBLAS, which counts columns first, for out^T = w^T x^T."""
        (m, k), n, kind = x.shape, w.shape[1], _CUDA_TYPES[dtype]
        one, zero = self._one[np.float32].ctypes.data, self._zero[np.float32].ctypes.data
        cublas, handle = self._cublas, self.xp.cuda.device.get_cublas_handle()
        cublas.gemmEx(
            handle,
            cublas.CUBLAS_OP_N,
            cublas.CUBLAS_OP_N,
            n,
            m,
            k,
            one,
            w.data.ptr,
            kind,
            n,
            x.data.ptr,
            kind,
            k,
            zero,
            out.data.ptr,
            kind,
            n,
            _COMPUTE_FLOAT32,
            _DEFAULT_ALGORITHM,
        )

    def gemm_8bit(self, x: Array, w: Array, out: Array) -> None:
        """Rows of both are summed along, the one layout that the 8-bit tensor cores take."""
        (m, k), n = x.shape, w.shape[0]
        one, zero = self._one[np.int32].ctypes.data, self._zero[np.int32].ctypes.data
        cublas, handle = self._cublas, self.xp.cuda.device.get_cublas_handle()
        cublas.gemmEx(
            handle,
            cublas.CUBLAS_OP_T,
            cublas.CUBLAS_OP_N,
            n,
            m,
            k,
            one,
            w.data.ptr,
            _CUDA_INT8,
            k,
            x.data.ptr,
            _CUDA_INT8,
            k,
            zero,
            out.data.ptr,
            _CUDA_INT32,
            n,
            _COMPUTE_INT32,
            _DEFAULT_ALGORITHM,
        )


class _CupyKernel:
    def __init__(self, function: Any) -> None:  # noqa: ANN401 - CuPy cannot be named
        self._function = function
        self._allowed_bytes = _FREE_SHARED_BYTES

    def __call__(self, grid: Grid, block: Grid, args: Sequence[Any], *, shared_bytes: int = 0) -> None:
        if shared_bytes > self._allowed_bytes:
            self._function.max_dynamic_shared_size_bytes = self._allowed_bytes = shared_bytes
        self._function(grid, block, tuple(args), shared_mem=shared_bytes)
