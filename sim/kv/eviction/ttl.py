"""Blocks expire: a block not used for `ttl_s` seconds is gone, whether or not its place is wanted.

Where a place is wanted before anything has expired, the block that would expire first goes. So with the time counted
from the last use this is LRU with an end, and with the time counted from insertion FIFO with an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.kv.eviction.ranking import Ranking

NS_PER_S = 1_000_000_000


class Ttl(BaseModel):
    """Drop a block some time after its use; evict the one that expires first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["ttl"] = "ttl"
    ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """Seconds for which a block can be hit: after exactly so long it still can."""
    since: Literal["last_use", "insertion"] = "last_use"
    """What the time counts from."""

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> TtlEviction:  # noqa: ARG002
        return TtlEviction(round(self.ttl_s * NS_PER_S), renewed=self.since == "last_use")


class TtlEviction:
    """A block ranks by (when it expires, recency). A held block stays, and counts from its release if renewed."""

    def __init__(self, ttl_ns: int, *, renewed: bool) -> None:
        self._ttl_ns = ttl_ns
        self._renewed = renewed
        self._recency = 0
        self._ranks: dict[int, tuple[int, int, int]] = {}  # of every block of the cache
        self._free = Ranking()

    def inserted(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        for block in blocks:
            self._stamp(block, now_ns)
            self._free.put(self._ranks[block])

    def accessed(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        if not self._renewed:
            return
        for block in blocks:
            self._stamp(block, now_ns)
            if block in self._free:
                self._free.put(self._ranks[block])

    def held(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._free.drop(block)

    def released(self, blocks: Sequence[int], now_ns: int) -> None:
        for block in blocks:
            if self._renewed:
                self._stamp(block, now_ns)
            self._free.put(self._ranks[block])

    def removed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._free.drop(block)
            del self._ranks[block]

    def victims(self, count: int) -> list[int]:
        return self._free.first(count)

    def expired(self, now_ns: int) -> list[int]:
        return self._free.below((now_ns,))

    def _stamp(self, block: int, now_ns: int) -> None:
        self._recency += 1
        self._ranks[block] = (now_ns + self._ttl_ns, self._recency, block)
