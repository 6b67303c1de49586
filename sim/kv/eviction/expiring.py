"""Any policy with an end: blocks go in its order, and those unused for too long are gone in any case.

A policy for the order and one for the end are told the same; each is asked for its own part.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.kv.eviction.decision import Eviction
from sim.kv.eviction.ttl import NS_PER_S, TtlEviction


class ExpiringEviction:
    """`order` names victims, and has no end of its own; a block expires `ttl_s` seconds after its last use."""

    def __init__(self, order: Eviction, ttl_s: float) -> None:
        self._order = order
        self._end = TtlEviction(round(ttl_s * NS_PER_S), renewed=True)

    def inserted(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:
        self._order.inserted(blocks, positions, now_ns)
        self._end.inserted(blocks, positions, now_ns)

    def accessed(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:
        self._order.accessed(blocks, positions, now_ns)
        self._end.accessed(blocks, positions, now_ns)

    def held(self, blocks: Sequence[int]) -> None:
        self._order.held(blocks)
        self._end.held(blocks)

    def released(self, blocks: Sequence[int], now_ns: int) -> None:
        self._order.released(blocks, now_ns)
        self._end.released(blocks, now_ns)

    def removed(self, blocks: Sequence[int]) -> None:
        self._order.removed(blocks)
        self._end.removed(blocks)

    def victims(self, count: int) -> list[int]:
        return self._order.victims(count)

    def expired(self, now_ns: int) -> list[int]:
        return self._end.expired(now_ns)
