"""Least frequently used first, uses counted since the block came into the cache; ties by recency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.kv.eviction.scored import ScoredEviction


class Lfu(BaseModel):
    """Evict the block with the fewest uses since it came, among those the least recently used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["lfu"] = "lfu"

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> ScoredEviction[int]:  # noqa: ARG002
        return ScoredEviction(count)


def count(block: int, position: int, before: int | None) -> int:  # noqa: ARG001
    """Uses since the block came into the cache."""
    return 1 if before is None else before + 1
