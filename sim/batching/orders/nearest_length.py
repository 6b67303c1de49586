"""Batches of similar lengths: the oldest leads, and those nearest to it in length join it."""

from __future__ import annotations

from sim.batching.decision import ArrivalsView


class NearestLength:
    """Prefer the length nearest to that of the batch's first, the older of equals."""

    def __init__(self) -> None:
        self._leader: int | None = None

    def start_batch(self) -> None:
        """Whoever is taken next leads a batch."""
        self._leader = None

    def arrived(self, tokens: int) -> None:
        pass

    def taken(self, tokens: int) -> None:
        if self._leader is None:
            self._leader = tokens

    def best(self, arrivals: ArrivalsView, count: int) -> int:
        leader = self._leader
        if leader is None:
            return 0
        return min(range(count), key=lambda place: abs(arrivals.tokens(place) - leader))
