"""How arrays have to lie in a GPU's memory for the kernels: contiguous, or apart by whole words."""

from __future__ import annotations

import math

from hwbackend.kernels.checks import WORD_BYTES, require
from hwbackend.kernels.sources import HEAD_DIMS
from hwbackend.ops import Array


def check_whole(operation: str, *arrays: Array) -> None:
    """Refuse arrays that are not contiguous."""
    for x in arrays:
        require(x.flags.c_contiguous, operation, f"an array of {x.shape} that is not contiguous")


def check_head_dim(operation: str, head_dim: int) -> None:
    """Refuse heads that no kernel was written for."""
    require(
        head_dim in HEAD_DIMS,
        operation,
        f"heads of {head_dim}; the kernels have {HEAD_DIMS[0]} and {HEAD_DIMS[1]}",
    )


def token_stride(operation: str, x: Array) -> int:
    """Values from token to token of x[n, heads, d], whose tokens are contiguous and 16-byte aligned."""
    size = x.itemsize
    inner = x.strides[2] == size and (x.shape[1] == 1 or x.strides[1] == x.shape[2] * size)
    require(
        inner and _rows_aligned(x),
        operation,
        f"{x.shape} with strides {x.strides}; heads of a token must be contiguous, tokens aligned to 16 bytes",
    )
    return _row_values(x)


def row_stride(operation: str, x: Array) -> int:
    """Values from row to row of x[m, i], whose rows are contiguous and 16-byte aligned."""
    require(
        x.strides[1] == x.itemsize and _rows_aligned(x),
        operation,
        f"{x.shape} with strides {x.strides}; rows must be contiguous and aligned to 16 bytes",
    )
    return _row_values(x)


def _rows_aligned(x: Array) -> bool:
    return bool(x.shape[0] <= 1 or x.strides[0] % WORD_BYTES == 0)


def _row_values(x: Array) -> int:
    """Values from one entry of the first axis to the next; one alone has no stride that means anything."""
    return math.prod(x.shape[1:]) if x.shape[0] <= 1 else int(x.strides[0] // x.itemsize)
