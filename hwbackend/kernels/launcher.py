"""Kernels compiled for a dtype of activations, and launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hwbackend.kernels.launch import Grid, Runtime
from hwbackend.kernels.sources import DTYPE_CODES
from hwbackend.ops import Array, Dtype

NULL: Final = np.intp(0)
"""An address that a kernel does not read."""
STORAGE: Final[dict[Dtype, Any]] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int8": np.int8,
    "fp8": np.uint8,
}


class Launcher:
    """Launches kernels for activations of `dtype` on the runtime's current stream; makes what they fill."""

    def __init__(self, runtime: Runtime, dtype: Dtype) -> None:
        self.runtime = runtime
        self.dtype: Dtype = dtype
        self.xp = runtime.xp

    def launch(
        self,
        source: str,
        kernel: str,
        grid: Grid,
        threads: int,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        **defines: int,
    ) -> None:
        if math.prod(grid) == 0:
            return
        if source != "blocks":  # which moves bytes, whatever they mean
            defines["ACT"] = DTYPE_CODES[self.dtype]
        compiled = self.runtime.kernel(source, kernel, **defines)
        compiled(grid, (threads,), args, shared_bytes=shared_bytes)

    def empty(self, shape: tuple[int, ...], dtype: Dtype | None = None) -> Array:
        """An array of this dtype (None: of the activations), not filled."""
        return self.xp.empty(shape, STORAGE[dtype or self.dtype])


def score_scale(head_dim: int) -> np.float32:
    """Of scores, for an exponential of base 2: log2(e) / sqrt(d)."""
    return np.float32(math.log2(math.e) / math.sqrt(head_dim))


def blocks_of(work: int, each: int) -> int:
    """Blocks of threads for `work`, where a block does `each`."""
    return -(-work // each)
