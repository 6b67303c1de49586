"""Taking many steps at once is an optimisation: records and summaries are the same, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.dynamic_chunked import DynamicChunked
from sim.cost.build import compile_cost
from sim.kv.allocators.shrinking_paged import ShrinkingPaged
from sim.kv.compression import KvCompression
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.ttl import Ttl
from sim.qos.contract import Contracts, Tier
from sim.routing.prefix_affinity import PrefixAffinity
from tests.sim.doubles import TINY, ClosedFormProfile
from tests.sim.engines import trace_of, with_prefixes
from tests.sim.exactness import assert_engine_exact
from tests.sim.sessions import session_trace, sessions
from tests.sim.strategies import allocators, callers, clusters, costs, engines, requests


@settings(max_examples=400, deadline=None)
@given(requests, costs, st.integers(8, 60), engines(), clusters, callers(10))
def test_of_every_batcher_and_router(requests, cost, blocks, engine, cluster, concurrency):
    assert_engine_exact(
        trace_of(*requests), cost, usable_blocks=blocks, max_concurrency=concurrency, **engine, **cluster
    )


@settings(max_examples=300, deadline=None)
@given(requests, costs, st.integers(20, 100), engines(), allocators, callers(10))
def test_of_every_allocator(requests, cost, blocks, engine, allocator, concurrency):
    assert_engine_exact(
        trace_of(*requests),
        cost,
        usable_blocks=blocks,
        max_model_len=2 * blocks if getattr(allocator, "reserve", "") == "max" else 1 << 40,
        max_concurrency=concurrency,
        allocator=allocator,
        **engine,
    )


@settings(max_examples=200, deadline=None)
@given(
    requests=requests,
    engine=engines(
        st.sampled_from([Chunked(), Continuous(), DynamicChunked(target_tpot_ms=0.02)]),
        budget=(90, 130),
    ),
    compression=st.builds(
        KvCompression,
        recent_tokens=st.integers(0, 40),
        older_kept=st.sampled_from([Fraction(0), Fraction(3, 5), Fraction(1)]),
        older_dtype=st.sampled_from(["bfloat16", "fp8", "int8"]),
    ),
    blocks=st.integers(20, 60),
    spread=st.sampled_from([1, 20]),
)
def test_where_kv_shrinks_with_age(requests, engine, compression, blocks, spread):
    """On a compiled cost, whose steps then depend on two sums over the sequences."""
    cost = compile_cost(
        TINY,
        ClosedFormProfile(kinks=(100, 300)),
        max_num_batched_tokens=130,
        max_num_seqs=8,
        compression=compression,
    )
    assert_engine_exact(
        trace_of(*((spread * arrival, prompt, answer) for arrival, prompt, answer in requests)),
        cost,
        usable_blocks=blocks,
        allocator=ShrinkingPaged(compression.footprint(4, TINY.head_dim)),
        **engine,
    )


@settings(max_examples=300, deadline=None)
@given(
    talks=sessions,
    cost=costs,
    blocks=st.integers(30, 100),
    engine=engines(),
    cluster=clusters,
    concurrency=callers(5),
    longest=st.sampled_from([100, 10**6]),
    caching=st.booleans(),
)
def test_of_turns_that_wait_for_answers(talks, cost, blocks, engine, cluster, concurrency, longest, caching):
    """Arrivals follow from ends of steps, some at the same instant on several replicas."""
    assert_engine_exact(
        session_trace(talks, 4, closed=concurrency is not None),
        cost,
        usable_blocks=blocks,
        max_concurrency=concurrency,
        max_model_len=longest,
        prefix_caching=caching,
        **engine,
        **cluster,
    )


@settings(max_examples=300, deadline=None)
@given(
    talks=sessions,
    cost=costs,
    blocks=st.integers(24, 60),
    engine=engines(seats=(1, 4), budget=(90, 90)),
    replicas=st.integers(2, 3),
    router=st.builds(
        PrefixAffinity, max_imbalance=st.integers(0, 3), signal=st.just("cached"), remember_blocks=st.none()
    ),
    eviction=st.sampled_from([None, Lfu(), Ttl(ttl_s=2e-5)]),
    delay=st.sampled_from([0, 1000, 3500]),
)
def test_of_routers_that_know_what_is_cached(talks, cost, blocks, engine, replicas, router, eviction, delay):
    """Caches change in the middle of what is taken at once, and a router may only see that afterwards."""
    assert_engine_exact(
        session_trace(talks, 4, closed=False),
        cost,
        usable_blocks=blocks,
        router=router,
        replicas=replicas,
        signal_delay_ns=delay,
        prefix_caching=True,
        eviction=eviction,
        **engine,
    )


tiers = st.builds(
    Tier,
    name=st.just("tier"),
    share=st.sampled_from([Fraction(3, 10), Fraction(1, 2)]),
    burst=st.sampled_from([Fraction(6, 5), Fraction(2)]),
    # Tokens that come every few steps, faster than that, and hardly ever.
    refill_blocks_per_s=st.sampled_from([None, 3e5, 1e7, 2e4]),
    connections=st.sampled_from([None, 3]),
    ttl_s=st.sampled_from([None, 2e-5]),
    eviction=st.sampled_from([None, Lfu()]),
)


@settings(max_examples=300, deadline=None)
@given(
    requests=requests,
    tenants=st.lists(st.integers(0, 1), min_size=30, max_size=30),
    contracts=st.builds(
        lambda hard, own, other: Contracts(hard, (own, replace(other, share=Fraction(1, 2))), (0, 1)),
        st.booleans(),
        tiers,
        tiers,
    ),
    cost=costs,
    blocks=st.integers(40, 100),
    engine=engines(seats=(2, 8)),
    replicas=st.integers(1, 2),
    caching=st.booleans(),
    concurrency=callers(10),
)
def test_of_pools(requests, tenants, contracts, cost, blocks, engine, replicas, caching, concurrency):
    trace = replace(
        trace_of(*requests).with_columns(tenant=tenants[: len(requests)]), tenant_names=("own", "other")
    )
    if caching:
        trace = with_prefixes(trace, [list(range(inputs // 4)) for _, inputs, _ in requests], 4)
    assert_engine_exact(
        trace,
        cost,
        usable_blocks=blocks,
        contracts=contracts,
        max_concurrency=concurrency,
        replicas=replicas,
        prefix_caching=caching,
        **engine,
    )
