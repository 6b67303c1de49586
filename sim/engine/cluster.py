"""Replicas behind a router, and a run of it all: client, router, replicas."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.batching.decision import BatcherConfig, EngineLimits
from sim.cost import StepCost
from sim.engine.client import Client
from sim.engine.clock import At, Clock, Priority, Signal
from sim.engine.core import EngineCore
from sim.engine.frontend import Frontend, FrontendTimes
from sim.engine.paged_steps import PagedSteps
from sim.engine.records import RequestLog, StepColumns
from sim.engine.replica import Replica
from sim.engine.request import RequestTable
from sim.engine.request import Sequence as Running
from sim.errors import ConfigError
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.build import KvSetup, build_allocator
from sim.kv.pools.build import build_pools
from sim.links.network import Network
from sim.metrics import Requests
from sim.qos.connections import Connections
from sim.qos.contract import Contracts
from sim.routing.decision import Changes, ReplicaView, RequestView, Router, RouterConfig
from workloads.answers import sequence_hashes
from workloads.tenants import own_namespace
from workloads.trace import BlockHashes, Trace


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
        connections: Connections | None = None,
        frontend: FrontendTimes | None = None,
    ) -> None:
        self.env = env
        self.requests = RequestLog(table)
        self._table = table
        self._frontend = frontend or FrontendTimes()
        self._frontends: list[Frontend] = []  # one a replica, where they take any time
        self._connections = connections
        self.replicas: list[Replica] = []
        self.on_done: Callable[[Sequence[int]], None] | None = (
            None  # learns which requests are done, or refused
        )
        self.on_share_done: Callable[[], None] | None = (
            None  # called each time that another 1% of the requests is done
        )
        self.ended = Signal(env)  # given once all requests are done
        self._done_count = 0
        self._count = len(table)
        self._share = max(self._count / 100, 1.0)
        self._next_share = self._share
        self._request = RequestView(table)
        # In the order of the replicas, where they report what they cache.
        self._watched: list[CachedPagedAllocator] = []
        self._views: list[ReplicaView] = []
        self._router = router
        self._rng = rng
        self._delay_ns = signal_delay_ns
        # (when known, replica, requests finished, what came into its prefix cache and went)
        self._reports: deque[tuple[int, int, int, Changes | None]] = deque()

    def add(self, replica: Replica) -> None:
        self.replicas.append(replica)
        if self._frontend:
            self._frontends.append(Frontend(self._frontend))
        self._views.append(ReplicaView(replica.index))

    def watch_caches(self) -> None:
        """Let replicas report what is in their prefix caches."""
        for replica, view in zip(self.replicas, self._views, strict=True):
            cache = replica.core.allocator
            if not isinstance(cache, CachedPagedAllocator):
                raise ConfigError(
                    "policies.router.signal: cached needs replicas with one prefix cache each, and these have "
                    f"{type(cache).__name__}; take own"
                )
            cache.watch_cache()
            view.learn(0, cache.cache_changes())
            self._watched.append(cache)

    def arrive(self, index: int) -> None:
        """A request reaches the router now."""
        if self._connections is not None and not self._connections.admit(index):
            self.requests.reject(index, -1, "exceeds_connections")
            self._done([index])
            return
        now = self.env.now_ns
        while self._reports and self._reports[0][0] <= now:
            _, replica, count, changes = self._reports.popleft()
            self._views[replica].learn(count, changes)
        self._request.index = index
        chosen = self._router.route(self._request, self._views, now, self._rng)
        self._views[chosen].in_flight += 1
        if self._frontends:
            streams = self.replicas[chosen].core.num_running
            leaves = self._frontends[chosen].leaves_ns(now, self._table.input_tokens[index], streams)
            if leaves > now:
                At(self.env, leaves - now, Priority.ARRIVAL).callbacks.append(
                    lambda _: self._submit(index, chosen)
                )
                return
        self._submit(index, chosen)

    def _submit(self, index: int, chosen: int) -> None:
        """A request reaches the engine of a replica now."""
        self._table.queued_ns[index] = self.env.now_ns
        reason = self.replicas[chosen].submit(index)
        if reason is not None:
            self._views[chosen].in_flight -= 1
            self.requests.reject(index, chosen, reason)
            self._close([index])
            self._done([index])

    def stepped(self, replica: Replica, sequences: Sequence[Running]) -> None:
        """A step of a replica is over that computed prompts, or in which these sequences finished."""
        changes = self._watched[replica.index].cache_changes() if self._watched else None
        if not sequences and changes is None:
            return
        now = self.env.now_ns
        for seq in sequences:
            self.requests.finish(seq, replica.index, now)
        if self._delay_ns:
            self._reports.append((now + self._delay_ns, replica.index, len(sequences), changes))
        else:
            self._views[replica.index].learn(len(sequences), changes)
        indices = [seq.index for seq in sequences]
        self._close(indices)
        self._done(indices)

    def _close(self, indices: Sequence[int]) -> None:
        if self._connections is not None:
            self._connections.close(indices)

    def _done(self, indices: Sequence[int]) -> None:
        self._done_count += len(indices)
        while self._done_count >= self._next_share:
            self._next_share += self._share
            if self.on_share_done is not None:
                self.on_share_done()
        if self.on_done is not None:
            self.on_done(indices)
        if self._done_count == self._count:
            self.ended.give(Priority.RUN_END)


@dataclass(frozen=True)
class EngineSetup:
    """What every engine of a cluster is made of."""

    limits: EngineLimits
    batcher: BatcherConfig
    kv: KvSetup
    contracts: Contracts | None = None
    looks_ahead: bool = False
    """Whether each step is planned when the one before it starts (async scheduling)."""

    def build(self, table: RequestTable, cost: StepCost) -> EngineCore:
        """Make one engine, which will serve requests of `table`."""
        contracts = self.contracts
        if contracts is None:
            allocator, lanes, weights = build_allocator(self.kv, table), None, [1.0]
        else:
            allocator = build_pools(self.kv, contracts, table, self.limits.max_num_seqs)
            lanes, weights = contracts.lanes_of(table.tenant), contracts.weights
        return EngineCore(
            self.limits,
            self.batcher.build(self.limits, cost),
            allocator,
            table,
            max_model_len=self.kv.max_model_len,
            sliding_window=cost.sliding_window,
            lane_of=lanes,
            lane_weights=weights,
            looks_ahead=self.looks_ahead,
        )


def prefixes(trace: Trace, block_size: int) -> BlockHashes | None:
    """What is in the blocks of every sequence, those of different tenants never the same."""
    hashes = sequence_hashes(trace, block_size)
    if hashes is None or len(trace.tenant_names) == 1:
        return hashes
    return own_namespace(hashes, trace.tenant)


def run_cluster(
    trace: Trace,
    cost: StepCost,
    engine: EngineSetup,
    *,
    replicas: int = 1,
    router: RouterConfig,
    router_seed: np.random.SeedSequence,
    signal_delay_ns: int = 0,
    max_concurrency: int | None = None,
    fast_forward: bool = True,
    network: Network | None = None,
    paged: Sequence[PagedSteps] | None = None,
    frontend: FrontendTimes | None = None,
    on_share_done: Callable[[], None] | None = None,
) -> tuple[Requests, tuple[StepColumns, ...]]:
    """Run the events of a cluster to their end: what `simulate` does between a scenario and its summary.

    `network` holds the links of the replicas, where anything ever moves on them; the run then ends with the last
    request, whatever is still on its way. `paged` does the steps of replicas whose KV is in host memory, over the
    network's links. `frontend` is what each replica's API server takes.
    """
    env = Clock() if network is None else network.env
    known = engine.kv.prefix_caching or router.reads_prefixes
    table = RequestTable(trace, prefixes(trace, engine.limits.block_size) if known else None)
    connections = None
    if engine.contracts is not None:
        connections = Connections(engine.contracts, engine.contracts.lanes_of(table.tenant))
    rng = np.random.default_rng(router_seed)
    cluster = Cluster(env, table, router.build(), rng, signal_delay_ns, connections, frontend)
    cluster.on_share_done = on_share_done
    for index in range(replicas):
        core = engine.build(table, cost)
        links = None if network is None else network.replicas[index]
        pages = None if paged is None else paged[index]
        cluster.add(
            Replica(
                env, index, core, cost, cluster.stepped, fast_forward=fast_forward, links=links, paged=pages
            )
        )
    if router.watches_caches:
        cluster.watch_caches()
    client = Client(env, table, cluster.arrive, max_concurrency)
    cluster.on_done = client.done
    collecting = gc.isenabled()
    gc.disable()  # many small live objects and no cycles among them: collections find nothing, slowly
    try:
        if network is None:
            env.run()
        elif len(table):
            env.run(until=cluster.ended.wait())
    finally:
        if collecting:
            gc.enable()
    logs = tuple(replica.log.columns(replica.core, env.now_ns) for replica in cluster.replicas)
    return Requests(cluster.requests.columns()), logs
