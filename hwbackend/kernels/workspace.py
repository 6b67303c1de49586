"""Buffers that are kept from call to call: an allocation of megabytes costs page faults, and each time others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Workspace:
    """Named buffers that grow and never shrink; what is taken holds until the same name is taken again."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[Any]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array of this shape, with whatever was in it."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            grown = 0 if buffer is None else buffer.size + buffer.size // 2
            buffer = self._buffers[name] = np.empty(max(size, grown), dtype)
        return buffer[:size].reshape(shape)
