"""Power of two choices: of two replicas drawn at random, the one with fewer requests in flight.

Nearly as even as asking all of them (Mitzenmacher, 2001), and where signals are late it does not send everybody to the
one replica that was idle a moment ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.routing.decision import ReplicaView, RequestView


class PowerOfTwo(BaseModel):
    """The less loaded of two; the first drawn of equals."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reads_prefixes: ClassVar[bool] = False
    watches_caches: ClassVar[bool] = False

    name: Literal["power_of_two"] = "power_of_two"

    def build(self) -> PowerOfTwoRouter:
        return PowerOfTwoRouter()


class PowerOfTwoRouter:
    def route(
        self,
        request: RequestView,  # noqa: ARG002
        replicas: Sequence[ReplicaView],
        now_ns: int,  # noqa: ARG002
        rng: np.random.Generator,
    ) -> int:
        count = len(replicas)
        if count == 1:
            return 0
        first = int(rng.integers(count))
        second = int(rng.integers(count - 1))
        second += second >= first
        return min(replicas[first], replicas[second], key=lambda replica: replica.in_flight).index
