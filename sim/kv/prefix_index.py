"""Which block holds which content: the look-up side of a prefix cache.

Content is an integer that stands for a full block after its whole prefix, so equal content means that everything
before is equal too. Two blocks may hold the same content (a prompt that is cached to its end still computes its last
block, into a block of its own); the one that came first is found, and the other takes its place when it goes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

_NOTHING = -1


class PrefixIndex:
    """Content of `num_blocks` blocks."""

    def __init__(self, num_blocks: int) -> None:
        self._content = np.full(num_blocks, _NOTHING, dtype=np.int64)
        self._slot_of: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}
        self._changed: set[int] | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def watch(self) -> None:
        """Note from now on what changes, for `changes`."""
        self._changed = set(self._slot_of)

    def changes(self) -> tuple[set[int], set[int]]:
        """Contents that have come and that have gone since the last call, as far as they did not go and come back."""
        changed, self._changed = self._changed or set(), set()
        here = changed & self._slot_of.keys()
        return here, changed - here

    def leading_run(self, contents: Int64) -> Int64:
        """Blocks that hold the longest known prefix of `contents`."""
        slot_of = self._slot_of
        found: list[int] = []
        for content in contents.tolist():
            slot = slot_of.get(content)
            if slot is None:
                break
            found.append(slot)
        return np.array(found, dtype=np.int64)

    def slots_of(self, contents: list[int]) -> Int64:
        """Blocks that are found for contents, which must be known."""
        return np.array([self._slot_of[content] for content in contents], dtype=np.int64)

    def unknown(self, contents: Int64) -> NDArray[np.bool_]:
        """Which of the contents no block holds."""
        return np.array([content not in self._slot_of for content in contents.tolist()], dtype=np.bool_)

    def store(self, contents: Int64, slots: Int64) -> None:
        """Say what blocks hold now; they held nothing before."""
        self._content[slots] = contents
        if self._changed is not None:
            self._changed.update(contents.tolist())
        slot_of = self._slot_of
        for content, slot in zip(contents.tolist(), slots.tolist(), strict=True):
            if slot_of.setdefault(content, slot) != slot:
                self._twins.setdefault(content, []).append(slot)

    def forget(self, slots: Int64) -> int:
        """Blocks are about to be used for something else; returns how many of them held something."""
        contents = self._content[slots]
        known = contents != _NOTHING
        count = int(np.count_nonzero(known))
        if count:
            self._drop(zip(contents[known].tolist(), slots[known].tolist(), strict=True))
            self._content[slots] = _NOTHING
        return count

    def known(self, slots: Int64) -> int:
        """How many of the blocks hold something."""
        return int(np.count_nonzero(self._content[slots] != _NOTHING))

    def _drop(self, pairs: Iterable[tuple[int, int]]) -> None:
        for content, slot in pairs:
            twins = self._twins.get(content)
            if twins is None:
                if self._changed is not None:
                    self._changed.add(content)
                del self._slot_of[content]
                continue
            if self._slot_of[content] == slot:
                self._slot_of[content] = twins.pop(0)
            else:
                twins.remove(slot)
            if not twins:
                del self._twins[content]

    def content_of(self, slots: Int64) -> Int64:
        """What blocks hold, -1 for nothing that could be found again."""
        return self._content[slots]
