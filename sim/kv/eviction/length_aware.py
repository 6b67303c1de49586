"""Least frequently used first; among equals the block deepest in its prompt, then the least recently used.

A deep block is worth less than a shallow one: it can only be hit together with all blocks before it, and by fewer
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.kv.eviction.scored import ScoredEviction

UsesThenDepth = tuple[int, int]


class LengthAware(BaseModel):
    """Evict the block with the fewest uses since it came, among those the deepest in its prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["length_aware"] = "length_aware"

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> ScoredEviction[UsesThenDepth]:  # noqa: ARG002
        return ScoredEviction(uses_then_depth)


def uses_then_depth(block: int, position: int, before: UsesThenDepth | None) -> UsesThenDepth:  # noqa: ARG001
    """Uses since the block came into the cache; of equally used blocks a deep one scores less."""
    return (1 if before is None else before[0] + 1, -position)
