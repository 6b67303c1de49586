"""Prefix affinity: the replica that has the most of a prompt in its cache, unless it is too busy.

What replicas have is either the router's own guess, from what it sent to whom, or what they report: the content of
their caches as of the last step that computed a prompt or finished a request, `cluster.signal_delay_ms` later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.routing.decision import ReplicaView, RequestView
from sim.routing.prefix_memory import PrefixMemory

_REMEMBERED = 65_536


class PrefixAffinity(BaseModel):
    """Longest known prefix first, within a bound on the imbalance."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    reads_prefixes: ClassVar[bool] = True

    name: Literal["prefix_affinity"] = "prefix_affinity"
    max_imbalance: int = Field(16, strict=True, ge=0, le=1_000_000_000)
    """Requests in flight that it may have more than the least loaded; beyond that the least loaded is taken."""
    signal: Literal["own", "cached"] = "own"
    """Where the router knows prefixes from: what it sent itself, or what replicas report to be in their caches."""
    remember_blocks: int | None = Field(None, strict=True, ge=1, le=1_000_000_000)
    """With signal: own, KV blocks remembered of each replica, the latest used; by default 65,536."""

    @model_validator(mode="after")
    def _memory_of_its_own(self) -> PrefixAffinity:
        if self.signal == "cached" and self.remember_blocks is not None:
            raise ValueError("remember_blocks acts with signal: own, not with cached; leave it out")
        return self

    @property
    def watches_caches(self) -> bool:
        return self.signal == "cached"

    def build(self) -> PrefixAffinityRouter:
        if self.watches_caches:
            return PrefixAffinityRouter(self.max_imbalance, None)
        return PrefixAffinityRouter(self.max_imbalance, self.remember_blocks or _REMEMBERED)


class PrefixAffinityRouter:
    def __init__(self, max_imbalance: int, remember_blocks: int | None) -> None:
        """Remember so many blocks of each replica; None: go by what replicas report."""
        self._max_imbalance = max_imbalance
        self._remember_blocks = remember_blocks
        self._memories: list[PrefixMemory] = []

    def route(
        self,
        request: RequestView,
        replicas: Sequence[ReplicaView],
        now_ns: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> int:
        blocks: list[int] = request.prompt_blocks.tolist()
        if self._remember_blocks is not None and not self._memories:
            self._memories = [PrefixMemory(self._remember_blocks) for _ in replicas]
        best = min(replicas, key=lambda replica: (-self._known(replica, blocks), replica.in_flight))
        least = min(replicas, key=lambda replica: replica.in_flight)
        if best.in_flight > least.in_flight + self._max_imbalance:
            best = least
        if self._memories:
            self._memories[best.index].use(blocks)
        return best.index

    def _known(self, replica: ReplicaView, blocks: list[int]) -> int:
        return (
            self._memories[replica.index].leading_run(blocks)
            if self._memories
            else replica.cached_run(blocks)
        )
