"""Free address ranges, and where among them a request is placed.

Addresses and lengths are in one unit of the caller's, from 0 to `size`. Free runs are kept coalesced: no two of them
touch. A run is known by its start and by its end, so that a range that comes back finds its neighbours at once; by
length, for the best fit and for the largest; and in classes of lengths from 2^k to 2^(k+1) - 1, each in order of
address, for the first fit: in every class above that of the request the first run fits, and only its own class has to
be looked through.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Literal, Protocol

from sim.errors import InvariantError

FittedPlacement = Literal["first_fit", "best_fit"]
Run = tuple[int, int]
"""Start and length."""


class Space(Protocol):
    """Addresses 0 to `size` that are handed out in ranges."""

    @property
    def free(self) -> int:
        """How many of them are not handed out."""

    @property
    def largest(self) -> int:
        """The longest range that could be handed out now."""

    def free_runs(self) -> list[Run]:
        """All free ranges in order of address."""


class Placement(Space, Protocol):
    """A space that says where a request goes."""

    def ever_fits(self, length: int) -> bool:
        """Whether a range could be handed out if all were free."""

    def fits(self, length: int) -> bool:
        """Whether a range could be handed out now."""

    def place(self, length: int) -> Run:
        """Hand out a range of at least `length`; only where it `fits`."""

    def give(self, start: int, length: int) -> None:
        """Take back a range that was handed out."""


class FreeRegions:
    """Free runs of a space, placed by first fit (lowest address) or best fit (shortest run, then lowest address).

    At first all is free, or of a part of a space the runs that belong to it.
    """

    def __init__(
        self, size: int, placement: FittedPlacement = "first_fit", runs: Iterable[Run] | None = None
    ) -> None:
        self.size = size
        self.free = 0
        self._best = placement == "best_fit"
        self._lengths: dict[int, int] = {}  # by start
        self._starts: dict[int, int] = {}  # by end
        self._by_length: list[tuple[int, int]] = []  # (length, start), sorted
        self._classes: list[list[int]] = [[] for _ in range(size.bit_length() + 1)]  # starts, sorted
        for start, length in [(0, size)] if runs is None else runs:
            self.give(start, length)

    @property
    def largest(self) -> int:
        return self._by_length[-1][0] if self._by_length else 0

    def ever_fits(self, length: int) -> bool:
        return length <= self.size

    def fits(self, length: int) -> bool:
        return length <= self.largest

    def run_at(self, start: int) -> int:
        """Length of the free run that begins at `start`; 0 where none does."""
        return self._lengths.get(start, 0)

    def place(self, length: int) -> Run:
        if not 0 < length <= self.largest:
            raise InvariantError(f"no range of {length} can be placed; the longest is {self.largest}")
        start = self._best_fit(length) if self._best else self._first_fit(length)
        self._cut(start, 0, length)
        return start, length

    def run_before(self, end: int) -> int:
        """Length of the free run that ends at `end`; 0 where none does."""
        start = self._starts.get(end, end)
        return end - start

    def is_free(self, start: int, length: int) -> bool:
        """Whether a certain range is free as a whole."""
        at = self._at_or_before(start)
        return at is not None and start + length <= at + self._lengths[at]

    def take(self, start: int, length: int) -> None:
        """Hand out a certain range, which must be free."""
        if length == 0:
            return
        first = start
        if first not in self._lengths:
            at = self._at_or_before(start)
            first = -1 if at is None else at
        if first < 0 or start + length > first + self._lengths[first]:
            raise InvariantError(f"range {start}+{length} is not free")
        self._cut(first, start - first, length)

    def give(self, start: int, length: int) -> None:
        if length == 0:
            return
        end = start + length
        if start < 0 or end > self.size:
            raise InvariantError(f"range {start}+{length} is outside of {self.size}")
        self.free += length
        before = self._starts.get(start)
        after = self._lengths.get(end)
        if before is not None:
            self._remove(before)
            start = before
        if after is not None:
            self._remove(end)
            end += after
        self._insert(start, end - start)

    def free_runs(self) -> list[Run]:
        return sorted(self._lengths.items())

    def _best_fit(self, length: int) -> int:
        return self._by_length[bisect_left(self._by_length, (length, -1))][1]

    def _first_fit(self, length: int) -> int:
        own = length.bit_length()
        best = min((starts[0] for starts in self._classes[own + 1 :] if starts), default=self.size)
        for start in self._classes[own]:
            if start > best:
                break
            if self._lengths[start] >= length:
                return start
        return best

    def _at_or_before(self, start: int) -> int | None:
        """Start of the last free run that begins at or before an address."""
        below = [starts[i - 1] for starts in self._classes if (i := bisect_left(starts, start + 1))]
        return max(below, default=None)

    def _cut(self, run: int, offset: int, length: int) -> None:
        whole = self._lengths[run]
        self._remove(run)
        if offset:
            self._insert(run, offset)
        rest = whole - offset - length
        if rest:
            self._insert(run + offset + length, rest)
        self.free -= length

    def _insert(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._starts[start + length] = start
        insort(self._by_length, (length, start))
        insort(self._classes[length.bit_length()], start)

    def _remove(self, start: int) -> None:
        length = self._lengths.pop(start)
        del self._starts[start + length]
        del self._by_length[bisect_left(self._by_length, (length, start))]
        starts = self._classes[length.bit_length()]
        del starts[bisect_left(starts, start)]


def check_cover(runs: Iterable[Run], size: int) -> None:
    """Raise InvariantError unless the runs cover addresses 0 to `size` exactly once."""
    end = 0
    for start, length in [*sorted(runs), (size, 0)]:
        if start != end:
            raise InvariantError(f"addresses {min(start, end)} to {max(start, end)} are lost or held twice")
        end += length
