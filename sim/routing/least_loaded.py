"""Least loaded: the replica with the fewest requests in flight, the first of equals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.routing.decision import ReplicaView, RequestView


class LeastLoaded(BaseModel):
    """Join the shortest queue, by requests in flight."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reads_prefixes: ClassVar[bool] = False
    watches_caches: ClassVar[bool] = False

    name: Literal["least_loaded"] = "least_loaded"

    def build(self) -> LeastLoadedRouter:
        return LeastLoadedRouter()


class LeastLoadedRouter:
    def route(
        self,
        request: RequestView,  # noqa: ARG002
        replicas: Sequence[ReplicaView],
        now_ns: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> int:
        return min(replicas, key=lambda replica: replica.in_flight).index
