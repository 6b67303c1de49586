"""Blocks that nobody holds, in the order in which they are used again: the longest free first.

Whole runs go in and out: a prompt costs a few array operations, not one per block. A block that leaves the middle of
the queue leaves a gap that is passed over later, since its stamp no longer is that of its run.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]

_HELD = -1
_NONE: Slots = np.zeros(0, dtype=np.int64)


class FreeQueue:
    """A queue over block numbers 0 to `num_blocks` - 1; at first all are in it, in order."""

    def __init__(self, num_blocks: int) -> None:
        self._stamps = np.zeros(num_blocks, dtype=np.int64)
        self._runs: deque[tuple[int, Slots]] = deque([(0, np.arange(num_blocks))])
        self._clock = 0
        self._size = num_blocks

    def __len__(self) -> int:
        return self._size

    def push(self, slots: Slots) -> None:
        """Append blocks, the first of `slots` to be used again first."""
        if slots.size:
            self._clock += 1
            self._stamps[slots] = self._clock
            self._runs.append((self._clock, slots))
            self._size += slots.size

    def remove(self, slots: Slots) -> None:
        """Take blocks out of wherever they are in the queue."""
        self._stamps[slots] = _HELD
        self._size -= slots.size

    def pop(self, count: int) -> Slots:
        """Take the first `count` blocks, which must be there."""
        found: list[Slots] = []
        missing = count
        while missing:
            stamp, slots = self._runs.popleft()
            first, rest = slots[:missing], slots[missing:]
            if rest.size:
                self._runs.appendleft((stamp, rest))
            there = first[self._stamps[first] == stamp]
            found.append(there)
            missing -= there.size
        taken = found[0] if len(found) == 1 else np.concatenate([_NONE, *found])
        self._stamps[taken] = _HELD
        self._size -= count
        return taken

    def peek(self, count: int) -> Slots:
        """The first `count` blocks, or all where there are fewer; they stay."""
        found: list[Slots] = []
        missing = count
        for stamp, slots in self._runs:
            if missing <= 0:
                break
            there = slots[self._stamps[slots] == stamp][:missing]
            found.append(there)
            missing -= there.size
        return np.concatenate([_NONE, *found])

    def slots(self) -> Slots:
        """All blocks of the queue, in order."""
        live = [slots[self._stamps[slots] == stamp] for stamp, slots in self._runs]
        return np.concatenate([_NONE, *live])
