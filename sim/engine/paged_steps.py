"""The steps of a replica whose KV is in host memory: what they wait for, and what is copied while they run.

Sequences that decode read their pages in every step; so a step is planned alone, never several at once. A prompt's
KV stays in HBM until its sequence decodes: then its pages are born as those of any other new token. What is written
also goes to host memory, in the other direction of the link; that is not accounted for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import Sequence
from sim.kv.paging.host_paging import HostPaging
from sim.kv.transfer import Transfer
from sim.links.flow import Flow
from sim.links.replica_links import ReplicaLinks

DEMAND = "demand"
PREFETCH = "prefetch"
FACTS = ("page_reads", "page_hits", "blocking_bytes", "prefetched_bytes")


class PagedSteps:
    """Called by a `Replica` at the turns of each step."""

    def __init__(self, paging: HostPaging) -> None:
        self.paging = paging
        self._keys: set[int] = set()
        self._flow: Flow | None = None
        self._facts = array("q")
        self._before = (0, 0, 0)

    @property
    def facts(self) -> NDArray[np.int64]:
        """Of every step that ran, (steps, FACTS)."""
        return np.array(self._facts, dtype=np.int64).reshape(-1, len(FACTS))

    def demand(self, core: EngineCore, plan: BatchPlan) -> list[Transfer]:
        """Read the pages of the step that is planned; returns what it waits for."""
        batch = [
            (seq.index, seq.target + core.step - seq.joined_step + 1)
            for seq in core.running
            if seq.joined_step >= 0
        ]
        keys = {key for key, _ in batch}
        for key in sorted(self._keys - keys):  # preempted
            self.paging.end(key)
        self._keys = keys
        if not batch:
            return []
        paging = self.paging
        reads = paging.account.reads
        blocking = paging.begin_step(batch)
        plan.steps = 1
        plan.context_tokens = min(plan.context_tokens, paging.tokens(paging.account.reads - reads))
        return [Transfer(DEMAND, "load", blocking, blocking=True, payload=self)] if blocking else []

    def runs(self, links: ReplicaLinks) -> None:
        """The step starts now: copy what the prefetcher wants beside it."""
        queued = self.paging.plan_prefetches() if self._keys else 0
        if queued:
            self._flow = links.stream("load", queued, PREFETCH)

    def ran(self, links: ReplicaLinks, finished: Iterable[Sequence]) -> None:
        """The step has run, and with it ends what is copied beside it; of those finished nothing is read again."""
        moved = 0
        if self._flow is not None:
            moved = links.stop(self._flow)
            self._flow = None
            self.paging.arrived(moved)
        account = self.paging.account
        now = (account.reads, account.hits, account.blocking_bytes)
        self._facts.extend(after - before for after, before in zip(now, self._before, strict=True))
        self._facts.append(moved)
        self._before = now
        for seq in finished:
            self._keys.discard(seq.index)
            self.paging.end(seq.index)
