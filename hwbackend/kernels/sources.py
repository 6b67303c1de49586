"""The CUDA sources: their text, and what they are compiled with."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

SOURCES: Final = (
    "blocks",
    "decode_attention",
    "elementwise",
    "kv_cache",
    "prefill_attention",
    "quantise",
    "stream",
)
DTYPE_CODES: Final = {"bfloat16": 0, "float16": 1, "int8": 2, "fp8": 3}
"""As `common.cuh` numbers them."""
HEAD_DIMS: Final = (64, 128)

_INCLUDE: Final = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
_KERNEL: Final = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(')


@cache
def source(name: str) -> str:
    """Text of `name`.cu with its headers in place, each once: caches of compiled code see a change in any of them."""
    seen: set[str] = set()

    def expand(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = files("hwbackend.kernels").joinpath(file).read_text(encoding="utf-8")
        return _INCLUDE.sub(lambda match: expand(match[1]), text.replace("#pragma once\n", ""))

    return expand(f"{name}.cu")


def kernel_names(name: str) -> tuple[str, ...]:
    """Kernels that a source defines, in its order."""
    return tuple(_KERNEL.findall(source(name)))


def options(defines: dict[str, int]) -> tuple[str, ...]:
    """Options of the compiler, the same for NVRTC, nvcc and a host compiler."""
    return ("-std=c++17", *(f"-D{name}={value}" for name, value in sorted(defines.items())))
