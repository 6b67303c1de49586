"""What a sequence's KV takes, where its older tokens shrink: a count of granules that depends on its tokens alone.

The latest tokens lie in whole 16-bit blocks, `recent_blocks` of them at most: as many as `recent` tokens can touch.
When a sequence needs a block beyond them, its oldest recent block ages: a share of its tokens is kept, perhaps in
8 bits, packed with what was kept before into older blocks. Memory is counted in granules, of which both kinds of
block are a whole number. The footprint never falls while a sequence grows, and changes only with its block count, so
its size at the end is also its peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Blocks of `block_size` tokens; a recent one is `recent_granules` large, an older one `older_granules`."""

    block_size: int
    recent_blocks: int
    kept: Fraction
    """Share of the tokens of an aged block that is kept, 0 to 1."""
    recent_granules: int
    older_granules: int

    @classmethod
    def of(cls, block_size: int, recent_tokens: int, kept: Fraction, older_bytes: Fraction) -> Footprint:
        """`recent_tokens` stay whole at least; an older token takes `older_bytes` of a recent one's bytes."""
        return cls(
            block_size=block_size,
            recent_blocks=max(-(-(recent_tokens - 1) // block_size) + 1, 1),
            kept=kept,
            recent_granules=older_bytes.denominator,
            older_granules=older_bytes.numerator,
        )

    def granules(self, tokens: int) -> int:
        """Granules that a sequence of so many tokens takes."""
        blocks = -(-tokens // self.block_size)
        recent = min(blocks, self.recent_blocks)
        older = -(-(blocks - recent) * self.kept.numerator // self.kept.denominator)
        return recent * self.recent_granules + older * self.older_granules

    def total(self, tokens: Tokens) -> int:
        """Granules of several sequences together."""
        blocks = -(-tokens // self.block_size)
        recent = np.minimum(blocks, self.recent_blocks)
        older = -(-(blocks - recent) * self.kept.numerator // self.kept.denominator)
        return int(recent.sum()) * self.recent_granules + int(older.sum()) * self.older_granules

    @property
    def parts_per_token(self) -> int:
        """What `stored` counts a recent token as, so that its counts are whole."""
        return self.recent_granules * self.kept.denominator

    def stored(self, tokens: Tokens) -> int:
        """KV of several sequences, in parts of a recent token: what is kept, without what blocks leave unfilled."""
        blocks = -(-tokens // self.block_size)
        older = int((blocks - np.minimum(blocks, self.recent_blocks)).sum()) * self.block_size
        recent = int(tokens.sum()) - older
        return recent * self.parts_per_token + older * self.kept.numerator * self.older_granules

    def longest(self, granules: int) -> int | None:
        """Most tokens of a sequence alone; None where it could grow without end."""
        recent = granules // self.recent_granules
        if recent < self.recent_blocks:
            return recent * self.block_size
        if not self.kept:
            return None
        left = granules - self.recent_blocks * self.recent_granules
        aged = left // self.older_granules * self.kept.denominator // self.kept.numerator
        return (self.recent_blocks + aged) * self.block_size
