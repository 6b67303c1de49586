"""What most policies have in common: the smallest score goes first, among equals the block not used for longest.

Such a policy is its score: what one more use makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from sim.kv.eviction.ranking import Ranking

S = TypeVar("S", int, float, tuple[int, int])


class Score(Protocol[S]):
    """Called once per use, in the order of the uses."""

    def __call__(self, block: int, position: int, before: S | None) -> S:
        """Return the score of a block after a use; `before` is None where this use brought it into the cache."""


class ScoredEviction(Generic[S]):
    """O(log n) per block at most; O(1) for a use that raises the score."""

    def __init__(self, score: Score[S]) -> None:
        self._score: Score[S] = score
        self._recency = 0
        self._scores: dict[int, S] = {}  # of every block of the cache
        self._free = Ranking()

    def inserted(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        score, scores, put, recency = self._score, self._scores, self._free.put, self._recency
        for block, position in zip(blocks, positions, strict=True):
            recency += 1
            scores[block] = new = score(block, position, None)
            put((new, recency, block))
        self._recency = recency

    def accessed(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        score, scores, free, recency = self._score, self._scores, self._free, self._recency
        for block, position in zip(blocks, positions, strict=True):
            recency += 1
            scores[block] = new = score(block, position, scores[block])
            if block in free:
                free.put((new, recency, block))
        self._recency = recency

    def held(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._free.drop(block)

    def released(self, blocks: Sequence[int], now_ns: int) -> None:  # noqa: ARG002
        for block in blocks:
            self._recency += 1
            self._free.put((self._scores[block], self._recency, block))

    def removed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._free.drop(block)
            del self._scores[block]

    def victims(self, count: int) -> list[int]:
        return self._free.first(count)

    def expired(self, now_ns: int) -> list[int]:  # noqa: ARG002
        return []
