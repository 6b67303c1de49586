"""Caps on the requests of a tier that are in flight over a cluster, as an API gateway keeps them (HTTP 429)."""

from __future__ import annotations

from collections.abc import Sequence

from sim.qos.contract import Contracts


class Connections:
    """Counts at the front door: a request holds its place from its arrival until it is done."""

    def __init__(self, contracts: Contracts, lanes: Sequence[int]) -> None:
        self._most = [tier.connections for tier in contracts.tiers]
        self._open = [0] * len(self._most)
        self._lanes = lanes

    def admit(self, index: int) -> bool:
        """Let a request in, or refuse it where its tier has no place left."""
        lane = self._lanes[index]
        most = self._most[lane]
        if most is not None and self._open[lane] >= most:
            return False
        self._open[lane] += 1
        return True

    def close(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._open[self._lanes[index]] -= 1
