"""Round robin: each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.routing.decision import ReplicaView, RequestView


class RoundRobin(BaseModel):
    """Each replica in turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reads_prefixes: ClassVar[bool] = False
    watches_caches: ClassVar[bool] = False

    name: Literal["round_robin"] = "round_robin"

    def build(self) -> RoundRobinRouter:
        return RoundRobinRouter()


class RoundRobinRouter:
    def __init__(self) -> None:
        self._next = 0

    def route(
        self,
        request: RequestView,  # noqa: ARG002
        replicas: Sequence[ReplicaView],
        now_ns: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> int:
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen
