"""First in, first out: blocks go in the order in which they came, however often they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.kv.eviction.scored import ScoredEviction


class Fifo(BaseModel):
    """Evict the block that has been in the cache for the longest time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["fifo"] = "fifo"

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> ScoredEviction[int]:  # noqa: ARG002
        return ScoredEviction(Arrival())


class Arrival:
    """When a block came into the cache, in uses of the cache."""

    def __init__(self) -> None:
        self._clock = 0

    def __call__(self, block: int, position: int, before: int | None) -> int:  # noqa: ARG002
        self._clock += 1
        return self._clock if before is None else before
