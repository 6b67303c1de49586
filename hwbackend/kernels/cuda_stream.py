"""Plain traffic over a GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hwbackend.kernels import checks
from hwbackend.kernels.cupy_runtime import CupyRuntime
from hwbackend.kernels.launch import Runtime
from hwbackend.ops import Array


class CudaStreamOps:
    """`hwbackend.ops.StreamOps` on a CUDA device, on the current stream."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or CupyRuntime()
        self._blocks = 16 * self._runtime.num_multiprocessors  # twice as many as are resident

    def copy(self, dst: Array, src: Array) -> None:
        words = checks.contiguous_words("copy", src)
        checks.require(
            dst.nbytes == src.nbytes, "copy", f"{src.nbytes} bytes to {dst.nbytes}; must be as many"
        )
        checks.contiguous_words("copy", dst)
        self._launch("stream_copy", (dst, src, np.int64(words)))

    def read(self, src: Array) -> Array:
        """The exclusive or of what each block of threads read."""
        digests = self._runtime.xp.empty(self._blocks, np.uint32)
        self._launch("stream_read", (digests, src, np.int64(checks.contiguous_words("read", src))))
        return digests

    def write(self, dst: Array) -> None:
        self._launch("stream_write", (dst, np.uint32(0), np.int64(checks.contiguous_words("write", dst))))

    def flush(self, buffer: Array) -> None:
        self._launch("flush", (buffer, np.int64(checks.contiguous_words("flush", buffer))))

    def empty(self) -> None:
        self._runtime.kernel("stream", "empty")((1,), (1,), ())

    def _launch(self, kernel: str, args: Sequence[Any]) -> None:
        self._runtime.kernel("stream", kernel)((self._blocks,), (256,), args)
