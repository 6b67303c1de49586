"""Session affinity: all requests of a session to one replica; new sessions, and those without, to the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sim.routing.decision import ReplicaView, RequestView


class SessionAffinity(BaseModel):
    """Sticky sessions, which move when their replica is too busy."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    reads_prefixes: ClassVar[bool] = False
    watches_caches: ClassVar[bool] = False

    name: Literal["session_affinity"] = "session_affinity"
    max_imbalance: int | None = Field(None, strict=True, ge=0, le=1_000_000_000)
    """Requests in flight that a session's replica may have more than the least loaded; by default any number."""

    def build(self) -> SessionAffinityRouter:
        return SessionAffinityRouter(self.max_imbalance)


class SessionAffinityRouter:
    def __init__(self, max_imbalance: int | None) -> None:
        self._max_imbalance = max_imbalance
        self._replica_of: dict[int, int] = {}

    def route(
        self,
        request: RequestView,
        replicas: Sequence[ReplicaView],
        now_ns: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> int:
        least = min(replicas, key=lambda replica: replica.in_flight)
        session = request.session
        if session is None:
            return least.index
        chosen = replicas[self._replica_of.get(session, least.index)]
        if self._max_imbalance is not None and chosen.in_flight > least.in_flight + self._max_imbalance:
            chosen = least
        self._replica_of[session] = chosen.index
        return chosen.index
