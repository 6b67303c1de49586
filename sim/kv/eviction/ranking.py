"""The order of blocks that are free to go, for policies whose order is not plain recency."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

Rank = tuple[Any, ...]
"""What a policy sorts by, as numbers or tuples of them; the last entry is the block itself."""


class Ranking:
    """Blocks by rank, smallest first. Giving a block a larger rank costs O(1), all else O(log n) amortised.

    A block that is used again only moves back in the order. Its old entry is left in the heap as a lower bound, and
    is brought up to date when it comes to the top: `_rank` holds the truth, `_entry` which entry of the heap counts.
    """

    __slots__ = ("_entry", "_heap", "_rank")

    def __init__(self) -> None:
        self._rank: dict[int, Rank] = {}
        self._entry: dict[int, Rank] = {}
        self._heap: list[Rank] = []

    def __contains__(self, block: int) -> bool:
        return block in self._rank

    def put(self, rank: Rank) -> None:
        """Add a block, or move it."""
        block = rank[-1]
        self._rank[block] = rank
        entry = self._entry.get(block)
        if entry is None or rank < entry:
            self._entry[block] = rank
            heappush(self._heap, rank)
            if len(self._heap) > 2 * len(self._rank) + 64:
                self._rebuild()

    def drop(self, block: int) -> None:
        del self._rank[block]
        if self._heap[0][-1] == block:  # as a victim is
            self._settle()

    def first(self, count: int) -> list[int]:
        """Return the `count` blocks with the smallest ranks, in order; fewer where there are fewer."""
        if count == 1:  # the usual question
            return [self._heap[0][-1]] if self._settle() else []
        taken: list[Rank] = []
        while len(taken) < count and self._settle():
            self._take(taken)
        return self._put_back(taken)

    def below(self, bound: Rank) -> list[int]:
        """Return all blocks with ranks below `bound`, in order."""
        taken: list[Rank] = []
        while self._settle() and self._heap[0] < bound:
            self._take(taken)
        return self._put_back(taken)

    def _take(self, taken: list[Rank]) -> None:
        rank = heappop(self._heap)
        if not taken or taken[-1] != rank:  # a block whose rank came back to an old one is there twice
            taken.append(rank)

    def _put_back(self, taken: list[Rank]) -> list[int]:
        for rank in taken:
            heappush(self._heap, rank)
        return [rank[-1] for rank in taken]

    def _settle(self) -> bool:
        """Bring the top of the heap up to date; False where nothing is left."""
        heap, ranks, entries = self._heap, self._rank, self._entry
        while heap:
            top = heap[0]
            block = top[-1]
            rank = ranks.get(block)
            if rank is top:
                return True
            if entries.get(block) != top:  # replaced by an entry with a smaller rank
                heappop(heap)
            elif rank is None:
                heappop(heap)
                del entries[block]
            elif rank == top:
                return True
            else:
                entries[block] = rank
                heapreplace(heap, rank)
        return False

    def _rebuild(self) -> None:
        self._heap = list(self._rank.values())
        heapify(self._heap)
        self._entry = dict(self._rank)
