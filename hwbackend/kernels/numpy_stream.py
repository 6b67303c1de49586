"""Plain traffic over a CPU's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwbackend.kernels.checks import contiguous_words


class NumpyStreamOps:
    """`hwbackend.ops.StreamOps` on the CPU, by one thread."""

    def copy(self, dst: NDArray[Any], src: NDArray[Any]) -> None:
        np.copyto(dst, src)

    def read(self, src: NDArray[Any]) -> NDArray[Any]:
        """The exclusive or of its 64-bit words."""
        contiguous_words("read", src)
        return np.asarray(np.bitwise_xor.reduce(src.reshape(-1).view(np.uint64)))

    def write(self, dst: NDArray[Any]) -> None:
        dst.fill(0)

    def flush(self, buffer: NDArray[Any]) -> None:
        contiguous_words("flush", buffer)
        words = buffer.reshape(-1).view(np.uint64)
        words += np.uint64(1)

    def empty(self) -> None:
        """A call of a function is what a launch costs here."""
