"""Replicas behind a router, and a run of it all: client, router, replicas."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from sim.batching.decision import BatcherConfig, EngineLimits
from sim.cost import StepCost
from sim.engine.client import Client
from sim.engine.clock import Clock
from sim.engine.core import EngineCore
from sim.engine.records import RequestLog, StepColumns
from sim.engine.replica import Replica
from sim.engine.request import RequestTable
from sim.engine.request import Sequence as Running
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.allocators.evicting_paged import EvictingPagedAllocator
from sim.kv.allocators.paged import PagedAllocator
from sim.kv.eviction.decision import EvictionConfig
from sim.metrics import Requests
from sim.routing.decision import ReplicaView, Router, RouterConfig
from workloads.answers import sequence_hashes
from workloads.trace import Trace


class Cluster:
    """Sends each request to the replica that the router names, and keeps what the router may know.

    A router counts what it sends itself; that requests finished it learns `signal_delay_ns` after the step.
    """

    def __init__(
        self,
        env: Clock,
        table: RequestTable,
        router: Router,
        rng: np.random.Generator,
        signal_delay_ns: int = 0,
    ) -> None:
        self.env = env
        self.requests = RequestLog(table)
        self.replicas: list[Replica] = []
        self.on_done: Callable[[Sequence[int]], None] | None = (
            None  # learns which requests are done, or refused
        )
        self.on_share_done: Callable[[], None] | None = (
            None  # called each time that another 1% of the requests is done
        )
        self._done_count = 0
        self._share = max(len(table) / 100, 1.0)
        self._next_share = self._share
        self._views: list[ReplicaView] = []
        self._router = router
        self._rng = rng
        self._delay_ns = signal_delay_ns
        self._reports: deque[tuple[int, int, int]] = deque()  # (when known, replica, requests finished)

    def add(self, replica: Replica) -> None:
        self.replicas.append(replica)
        self._views.append(ReplicaView(replica.index))

    def arrive(self, index: int) -> None:
        """A request reaches the router now."""
        now = self.env.now_ns
        while self._reports and self._reports[0][0] <= now:
            _, replica, count = self._reports.popleft()
            self._views[replica].in_flight -= count
        chosen = self._router.route(self._views, now, self._rng)
        reason = self.replicas[chosen].submit(index)
        if reason is None:
            self._views[chosen].in_flight += 1
        else:
            self.requests.reject(index, chosen, reason)
            self._done([index])

    def finished(self, replica: Replica, sequences: Sequence[Running]) -> None:
        now = self.env.now_ns
        for seq in sequences:
            self.requests.finish(seq, replica.index, now)
        if self._delay_ns:
            self._reports.append((now + self._delay_ns, replica.index, len(sequences)))
        else:
            self._views[replica.index].in_flight -= len(sequences)
        self._done([seq.index for seq in sequences])

    def _done(self, indices: Sequence[int]) -> None:
        self._done_count += len(indices)
        while self._done_count >= self._next_share:
            self._next_share += self._share
            if self.on_share_done is not None:
                self.on_share_done()
        if self.on_done is not None:
            self.on_done(indices)


def run_cluster(
    trace: Trace,
    cost: StepCost,
    limits: EngineLimits,
    *,
    usable_blocks: int,
    max_model_len: int,
    replicas: int = 1,
    batcher: BatcherConfig,
    router: RouterConfig,
    router_seed: np.random.SeedSequence,
    signal_delay_ns: int = 0,
    max_concurrency: int | None = None,
    prefix_caching: bool = False,
    warm_cache: bool = False,
    eviction: EvictionConfig | None = None,
    fast_forward: bool = True,
    on_share_done: Callable[[], None] | None = None,
) -> tuple[Requests, tuple[StepColumns, ...]]:
    """Run the events of a cluster to their end: what `simulate` does between a scenario and its summary."""
    env = Clock()
    table = RequestTable(trace, sequence_hashes(trace, limits.block_size) if prefix_caching else None)
    cluster = Cluster(env, table, router.build(), np.random.default_rng(router_seed), signal_delay_ns)
    cluster.on_share_done = on_share_done
    for index in range(replicas):
        core = EngineCore(
            limits,
            batcher.build(limits, cost),
            _allocator(
                usable_blocks, table, limits, eviction, prefix_caching=prefix_caching, warm=warm_cache
            ),
            table,
            max_model_len=max_model_len,
            sliding_window=cost.sliding_window,
        )
        cluster.add(Replica(env, index, core, cost, cluster.finished, fast_forward=fast_forward))
    client = Client(env, table, cluster.arrive, max_concurrency)
    cluster.on_done = client.done
    collecting = gc.isenabled()
    gc.disable()  # many small live objects and no cycles among them: collections find nothing, slowly
    try:
        env.run()
    finally:
        if collecting:
            gc.enable()
    logs = tuple(replica.log.columns(replica.core) for replica in cluster.replicas)
    return Requests(cluster.requests.columns()), logs


def _allocator(
    usable_blocks: int,
    table: RequestTable,
    limits: EngineLimits,
    eviction: EvictionConfig | None,
    *,
    prefix_caching: bool,
    warm: bool,
) -> PagedAllocator:
    """Make the blocks of one replica; a warm cache is one that has served all the requests before, in order.

    Without `eviction` free blocks are used again in the engine's own order.
    """
    size = limits.block_size
    if not prefix_caching:
        return PagedAllocator(usable_blocks, size)
    if eviction is None:
        allocator = CachedPagedAllocator(usable_blocks, size)
    else:
        passes = 2 if warm else 1  # an oracle must know the warming requests too
        uses = passes * [content for i in range(len(table)) for content in table.contents(i, size).tolist()]
        allocator = EvictingPagedAllocator(usable_blocks, size, eviction.build(usable_blocks, uses))
    if warm:
        for index in range(len(table)):
            tokens = table.input_tokens[index] + table.output_tokens[index] - 1
            allocator.warm_up(table.contents(index, size), tokens)
    return allocator
