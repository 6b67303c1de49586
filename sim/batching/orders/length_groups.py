"""Groups by length that follow the load: quantile bins over the latest arrivals, one group served at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from sim.batching.decision import ArrivalsView


class LengthGroups:
    """Prefer, oldest first, those in the group of the one taken last; then the group of the oldest.

    A prompt's group is the quantile of its length among the `history` latest arrivals, so that each group gets about
    an equal share of the requests whatever the lengths are; prompts of one length share a group.
    """

    def __init__(self, groups: int, history: int) -> None:
        self._groups = groups
        self._history = history
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self._taken: int | None = None

    def group(self, tokens: int) -> int:
        """0 for the shortest; what is shorter or longer than all seen belongs to the first or last."""
        seen = len(self._sorted)
        if not seen:
            return 0
        return min(bisect_left(self._sorted, tokens) * self._groups // seen, self._groups - 1)

    def arrived(self, tokens: int) -> None:
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > self._history:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def taken(self, tokens: int) -> None:
        self._taken = tokens

    def best(self, arrivals: ArrivalsView, count: int) -> int:
        if self._taken is None:
            return 0
        group = self.group(self._taken)
        for place in range(count):
            if self.group(arrivals.tokens(place)) == group:
                return place
        return 0
