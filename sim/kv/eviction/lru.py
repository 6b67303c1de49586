"""Least recently used first: the order of an engine's own queue of free blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Lru(BaseModel):
    """Evict the block that has gone unused for the longest time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["lru"] = "lru"

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> LruEviction:  # noqa: ARG002
        return LruEviction()


class LruEviction:
    """O(1) per block."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()  # blocks free to go, least recently used first

    def inserted(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        for block in blocks:
            self._order[block] = None

    def accessed(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        order = self._order
        for block in blocks:
            if block in order:
                order.move_to_end(block)

    def held(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            del self._order[block]

    def released(self, blocks: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        for block in blocks:
            self._order[block] = None

    def removed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            del self._order[block]

    def victims(self, count: int) -> list[int]:
        return list(islice(self._order, count))

    def expired(self, now_ns: int) -> list[int]:  # noqa: ARG002
        return []
