"""What a router remembers of the prompts it sent to one replica: their leading blocks, the latest used, up to a bound.

A router cannot look into a replica's cache, so this is a guess at it. A prompt's blocks are used from the last to the
first, so that a block is never forgotten before one that follows it; what is remembered of a prompt is then always
a leading run, and its length is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence


class PrefixMemory:
    """Blocks by content, each standing for everything before it too; the one used last comes last."""

    def __init__(self, most_blocks: int) -> None:
        self._most = most_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def leading_run(self, blocks: Sequence[int]) -> int:
        """How many of the first blocks of a prompt are remembered."""
        known = self._blocks
        return bisect_left(range(len(blocks)), True, key=lambda place: blocks[place] not in known)

    def use(self, blocks: Sequence[int]) -> None:
        """A prompt of these blocks was sent; what was used longest ago is forgotten for it."""
        known = self._blocks
        for block in reversed(blocks[: self._most]):
            if block in known:
                known.move_to_end(block)
            else:
                known[block] = None
        while len(known) > self._most:
            known.popitem(last=False)
