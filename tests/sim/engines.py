"""Small engines for tests: a cluster without a model or a profile, on a cost with closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.batching.chunked import Chunked
from sim.batching.decision import BatcherConfig, EngineLimits
from sim.cost import StepCost
from sim.engine.cluster import EngineSetup, run_cluster
from sim.engine.frontend import FrontendTimes
from sim.engine.records import StepColumns
from sim.kv.allocators.decision import AllocatorConfig
from sim.kv.allocators.paged import Paged
from sim.kv.build import KvSetup
from sim.kv.eviction.decision import EvictionConfig
from sim.kv.prefetch.session import Session
from sim.kv.tiers.setup import TierSetup
from sim.links.network import Network
from sim.metrics import Requests
from sim.qos.contract import Contracts
from sim.routing.least_loaded import LeastLoaded
from workloads.trace import BlockHashes, Trace


def trace_of(*requests: tuple[int, int, int]) -> Trace:
    """Requests as (arrival ns, input tokens, output tokens)."""
    arrivals, inputs, outputs = zip(*requests, strict=True) if requests else ((), (), ())
    return Trace.build(arrivals, inputs, outputs)


def run(
    trace: Trace,
    cost: StepCost,
    *,
    batcher: BatcherConfig | None = None,
    router: object = None,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    block_size: int = 4,
    usable_blocks: int = 1000,
    max_model_len: int = 1 << 40,
    max_concurrency: int | None = None,
    replicas: int = 1,
    signal_delay_ns: int = 0,
    allocator: AllocatorConfig | None = None,
    prefix_caching: bool = False,
    eviction: EvictionConfig | None = None,
    fast_forward: bool = True,
    network: Network | None = None,
    contracts: Contracts | None = None,
    tiers: TierSetup | None = None,
    prefetch: Session | None = None,
    looks_ahead: bool = False,
    frontend: FrontendTimes | None = None,
) -> tuple[Requests, tuple[StepColumns, ...]]:
    kv = KvSetup(
        usable_blocks,
        block_size,
        max_model_len,
        allocator=allocator or Paged(),
        prefix_caching=prefix_caching,
        eviction=eviction,
        tiers=tiers,
        prefetch=prefetch,
    )
    limits = EngineLimits(max_num_seqs, max_num_batched_tokens, block_size)
    return run_cluster(
        trace,
        cost,
        EngineSetup(limits, batcher or Chunked(), kv, contracts, looks_ahead),
        replicas=replicas,
        router=router or LeastLoaded(),
        router_seed=np.random.SeedSequence(1),
        signal_delay_ns=signal_delay_ns,
        max_concurrency=max_concurrency,
        fast_forward=fast_forward,
        network=network,
        frontend=frontend,
    )


def with_prefixes(trace: Trace, contents: list[list[int]], block_size: int) -> Trace:
    """Give the prompts block ids: `contents` for the full blocks, an id of its own for a partial last one."""
    ids: list[int] = []
    counts = -(-trace.input_tokens // block_size)
    for index, (count, known) in enumerate(zip(counts.tolist(), contents, strict=True)):
        own = [10**9 + index * 1000 + block for block in range(count)]
        ids += [*known[:count], *own[len(known[:count]) :]]
    return replace(trace, hashes=BlockHashes.build(block_size, counts, ids))
