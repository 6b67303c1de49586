"""Least loaded: the replica with the fewest requests in flight, the first of equals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.routing.decision import ReplicaView


class LeastLoaded(BaseModel):
    """Join the shortest queue, by requests in flight."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["least_loaded"] = "least_loaded"

    def build(self) -> LeastLoadedRouter:
        return LeastLoadedRouter()


class LeastLoadedRouter:
    def route(self, replicas: Sequence[ReplicaView], now_ns: int, rng: np.random.Generator) -> int:  # noqa: ARG002
        return min(replicas, key=lambda replica: replica.in_flight).index
