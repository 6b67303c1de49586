"""Batches of similar lengths: the oldest leads, and those nearest to it in length join it.

Every batch takes the oldest request of all, so nobody starves: a request that finds n others waiting is served by the
(n + 1)th batch at the latest.
"""

from __future__ import annotations

from sim.batching.decision import ArrivalsView


class NearestLength:
    """A `QueueOrder`: among the `lookahead` oldest, the length nearest to the batch's first; the older of equals."""

    def __init__(self, lookahead: int) -> None:
        self._lookahead = lookahead
        self._leader: int | None = None

    def start_batch(self) -> None:
        """Whoever is taken next leads a batch."""
        self._leader = None

    def arrived(self, tokens: int) -> None:
        pass

    def taken(self, tokens: int) -> None:
        if self._leader is None:
            self._leader = tokens

    def choose(self, arrivals: ArrivalsView, now_ns: int) -> int:  # noqa: ARG002
        leader = self._leader
        if leader is None:
            return 0
        places = range(min(len(arrivals), self._lookahead))
        return min(places, key=lambda place: abs(arrivals.tokens(place) - leader))
