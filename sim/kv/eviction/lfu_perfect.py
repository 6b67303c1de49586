"""Least frequently used first, uses counted from the start: a block that comes back is not new. Ties by recency.

The counts outlive the blocks, so memory grows with the distinct blocks ever seen; the other policies forget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.kv.eviction.scored import ScoredEviction


class LfuPerfect(BaseModel):
    """Evict the block with the fewest uses ever, among those the least recently used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["lfu_perfect"] = "lfu_perfect"

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> ScoredEviction[int]:  # noqa: ARG002
        return ScoredEviction(LastingCount())


class LastingCount:
    """Uses of a block since the start."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __call__(self, block: int, position: int, before: int | None) -> int:  # noqa: ARG002
        self._counts[block] = count = self._counts.get(block, 0) + 1
        return count
