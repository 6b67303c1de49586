"""What the launching code needs of a runtime: compiled kernels and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hwbackend.ops import Array, Dtype

Grid = tuple[int, ...]


class Kernel(Protocol):
    """A compiled kernel. Arguments are arrays (their addresses) and NumPy scalars."""

    def __call__(self, grid: Grid, block: Grid, args: Sequence[Any], *, shared_bytes: int = 0) -> None: ...


class Runtime(Protocol):
    """One device: an array module, kernels, and its BLAS."""

    xp: Any
    num_multiprocessors: int

    def kernel(self, source: str, name: str, /, **defines: int) -> Kernel:
        """Kernel `name` of `source`.cu compiled with these macros; compiled once."""
        ...

    def gemm(self, x: Array, w: Array, out: Array, dtype: Dtype) -> None:
        """out[m, n] = x[m, k] w[k, n], all contiguous, sums in float32."""
        ...

    def gemm_8bit(self, x: Array, w: Array, out: Array) -> None:
        """int32 out[m, n] = int8 x[m, k] w[n, k]^T, all contiguous."""
        ...
