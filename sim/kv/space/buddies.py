"""Buddy allocation: ranges are powers of two long and begin at a multiple of their length (Knowlton 1965).

A range that is not there is split off one twice as long, and comes together with its other half, its buddy, as soon
as both are free. A space whose size is no power of two is a row of ranges, the longest first, that never join.
"""

from __future__ import annotations

from bisect import insort

from sim.errors import InvariantError
from sim.kv.space.regions import Run


class FreeBuddies:
    """Free ranges of a space by their order (log2 of the length); the lowest address goes first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._orders: list[list[int]] = [[] for _ in range(max(size.bit_length(), 1))]  # starts, sorted
        self._free_order: dict[int, int] = {}  # by start
        self._roots: dict[int, int] = {}  # order of the ranges that never join, by start
        start = 0
        for order in reversed(range(size.bit_length())):
            if size >> order & 1:
                self._roots[start] = order
                self._insert(start, order)
                start += 1 << order

    @property
    def largest(self) -> int:
        for order in reversed(range(len(self._orders))):
            if self._orders[order]:
                return int(1 << order)
        return 0

    def ever_fits(self, length: int) -> bool:
        return _order(length) < self.size.bit_length()

    def fits(self, length: int) -> bool:
        return 1 << _order(length) <= self.largest

    def place(self, length: int) -> Run:
        wanted = _order(length)
        order = next((k for k in range(wanted, len(self._orders)) if self._orders[k]), None)
        if order is None:
            raise InvariantError(f"no range of {1 << wanted} can be placed; the longest is {self.largest}")
        start = self._orders[order][0]
        self._remove(start, order)
        while order > wanted:
            order -= 1
            self._insert(start + (1 << order), order)
        self.free -= 1 << wanted
        return start, 1 << wanted

    def give(self, start: int, length: int) -> None:
        order = _order(length)
        self.free += 1 << order
        while self._roots.get(start) != order:
            buddy = start ^ (1 << order)
            if self._free_order.get(buddy) != order:
                break
            self._remove(buddy, order)
            start = min(start, buddy)
            order += 1
        self._insert(start, order)

    def free_runs(self) -> list[Run]:
        """All free ranges, halves that wait for their buddies on their own; neighbours may touch."""
        return [(start, 1 << order) for start, order in sorted(self._free_order.items())]

    def _insert(self, start: int, order: int) -> None:
        if start in self._free_order:
            raise InvariantError(f"range at {start} is free already")
        self._free_order[start] = order
        insort(self._orders[order], start)

    def _remove(self, start: int, order: int) -> None:
        del self._free_order[start]
        self._orders[order].remove(start)


def _order(length: int) -> int:
    """Log2 of the shortest power of two that is at least `length`."""
    return (length - 1).bit_length()
