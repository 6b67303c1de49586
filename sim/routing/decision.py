"""What a router sees and what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(slots=True)
class ReplicaView:
    """A replica as its router knows it: as of its last completed step, or older where signals are delayed.

    in_flight   requests sent there and not reported finished; the router counts what it sends by itself
    """

    index: int
    in_flight: int = 0


class Router(Protocol):
    """A decision per request; ties and chance come from the generator that is given, never from elsewhere."""

    def route(self, replicas: Sequence[ReplicaView], now_ns: int, rng: np.random.Generator) -> int:
        """Return the index of the replica that gets the request."""


class RouterConfig(Protocol):
    """The part of a scenario that names a router."""

    def build(self) -> Router:
        """Make the router of one cluster."""
