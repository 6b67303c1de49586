"""Taking many steps at once is an optimisation: records and summaries are the same, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.dynamic_chunked import DynamicChunked
from sim.batching.length_grouped import LengthGrouped
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch
from sim.cost import StepCost
from sim.cost.build import compile_cost
from sim.kv.allocators.arena import Arena
from sim.kv.allocators.contiguous import Contiguous
from sim.kv.allocators.grow import Grow
from sim.kv.allocators.shrinking_paged import ShrinkingPaged
from sim.kv.allocators.size_class import SizeClassConfig
from sim.kv.compression import KvCompression
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.ttl import Ttl
from sim.metrics import kv_usage, serving_metrics, stage_statistics
from sim.qos.contract import Contracts, Tier
from sim.routing.least_loaded import LeastLoaded
from sim.routing.power_of_two import PowerOfTwo
from sim.routing.prefix_affinity import PrefixAffinity
from sim.routing.round_robin import RoundRobin
from sim.routing.session_affinity import SessionAffinity
from tests.sim.doubles import TINY, AffineCost, ClosedFormProfile, EveryOther
from tests.sim.engines import run, trace_of, with_prefixes
from tests.sim.sessions import session_trace, sessions
from workloads.trace import Trace

requests = st.lists(
    st.tuples(
        # Coarse times on purpose: arrivals at one instant, and exactly at the end of a step.
        st.integers(0, 60).map(lambda t: t * 1000),
        st.integers(1, 90),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=30,
).map(sorted)
batchers = st.one_of(
    st.builds(EveryOther, st.sampled_from([1500, 4000, 9999])),
    st.just(Chunked()),
    st.builds(Chunked, chunk_tokens=st.integers(1, 40)),
    st.just(Continuous()),
    st.builds(
        StaticBatch,
        batch_size=st.integers(1, 6),
        max_wait_ms=st.sampled_from([0, 0.002, 0.01]),
        padding=st.booleans(),
    ),
    st.builds(
        StaticBatch,
        batch_size=st.integers(1, 6),
        max_wait_ms=st.sampled_from([0, 0.01]),
        padding=st.booleans(),
        group_by=st.just("length"),
        lookahead=st.integers(1, 6),
    ),
    st.builds(
        StaticBatch,
        batch_size=st.integers(1, 6),
        padding=st.booleans(),
        group_by=st.just("prefix"),
        lookahead=st.integers(1, 6),
        max_overtaken=st.integers(0, 4),
    ),
    st.builds(
        LengthGrouped,
        groups=st.integers(1, 4),
        history=st.integers(1, 12),
        budget=st.integers(1, 400),
        lookahead=st.integers(1, 6),
        max_overtaken=st.integers(0, 4),
    ),
    st.builds(PrefixFirst, lookahead=st.integers(1, 6), max_overtaken=st.integers(0, 4)),
    st.builds(
        DynamicChunked,
        target_tpot_ms=st.sampled_from([0.0001, 0.002, 0.02]),
        min_chunk_tokens=st.integers(1, 16),
        kv_headroom=st.sampled_from([0.0, 0.3]),
    ),
)
ROUTERS = [LeastLoaded(), PowerOfTwo(), PrefixAffinity(max_imbalance=1), RoundRobin(), SessionAffinity()]
costs = st.builds(
    AffineCost,
    base_ns=st.sampled_from([1, 500, 1000, 2000]),
    per_seq_ns=st.sampled_from([0, 7, 250]),
    per_context_ns=st.sampled_from([0, 1, 3]),
    per_window_ns=st.sampled_from([0, 2]),
    per_prefill_token_ns=st.sampled_from([0, 11, 50]),
    sliding_window=st.sampled_from([None, None, 5, 24]),
)


allocators = st.one_of(
    st.builds(
        Contiguous, reserve=st.sampled_from(["max", "exact", "power_of_two"]), placement=st.just("best_fit")
    ),
    st.builds(Contiguous, reserve=st.just("exact"), placement=st.sampled_from(["first_fit", "buddy"])),
    st.builds(Arena, reserve=st.just("exact"), alignment_tokens=st.sampled_from([4, 12])),
    st.builds(
        SizeClassConfig,
        bounds_tokens=st.just((4, 24, 136)),
        shares=st.sampled_from([(0.3, 0.7), (0.6, 0.4)]),
        # Windows of a few steps, so that shares move in the middle of what could be taken at once.
        window_s=st.sampled_from([3e-6, 2e-5]),
        min_hit_rate=st.just(1.0),
        windows=st.integers(1, 2),
    ),
    st.builds(
        Grow, step_tokens=st.sampled_from([4, 8, 20]), placement=st.sampled_from(["first_fit", "best_fit"])
    ),
)


def assert_the_same_either_way(trace: Trace, cost: StepCost, blocks: int, **options: Any) -> None:
    def outcome(fast_forward: bool) -> tuple[dict, tuple, dict]:
        done, logs = run(trace, cost, usable_blocks=blocks, fast_forward=fast_forward, **options)
        summary = {
            **serving_metrics(done, logs, {"ttft": 0.02, "tpot": 0.002}),
            **stage_statistics(done),
            "kv": kv_usage(logs, blocks, done.duration_ns),
        }
        return dict(done.columns), logs, summary

    columns, logs, summary = outcome(True)
    other_columns, other_logs, other_summary = outcome(False)
    for name, column in columns.items():
        assert np.array_equal(column, other_columns[name]), name
    for log, other in zip(logs, other_logs, strict=True):
        for name, column in vars(log).items():
            assert np.array_equal(column, getattr(other, name)), name
    assert summary == other_summary


@settings(max_examples=400, deadline=None)
@given(
    requests=requests,
    batcher=batchers,
    cost=costs,
    blocks=st.integers(8, 60),
    seats=st.integers(1, 8),
    budget=st.integers(8, 130),
    replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    concurrency=st.one_of(st.none(), st.integers(1, 10)),
    delay=st.sampled_from([0, 1000, 3500]),
)
def test_records_and_summaries_are_identical(
    requests, batcher, cost, blocks, seats, budget, replicas, router, concurrency, delay
):
    assert_the_same_either_way(
        trace_of(*requests),
        cost,
        blocks,
        batcher=batcher,
        router=router,
        max_num_seqs=seats,
        max_num_batched_tokens=max(budget, seats, getattr(batcher, "chunk_tokens", None) or 0),
        max_concurrency=concurrency,
        replicas=replicas,
        signal_delay_ns=delay,
    )


@settings(max_examples=300, deadline=None)
@given(
    requests=requests,
    batcher=batchers,
    cost=costs,
    blocks=st.integers(20, 100),
    seats=st.integers(1, 8),
    budget=st.integers(8, 130),
    allocator=allocators,
    concurrency=st.one_of(st.none(), st.integers(1, 10)),
)
def test_records_are_identical_with_every_allocator(
    requests, batcher, cost, blocks, seats, budget, allocator, concurrency
):
    assert_the_same_either_way(
        trace_of(*requests),
        cost,
        blocks,
        batcher=batcher,
        max_num_seqs=seats,
        max_num_batched_tokens=max(budget, seats, getattr(batcher, "chunk_tokens", None) or 0),
        max_model_len=2 * blocks if getattr(allocator, "reserve", "") == "max" else 1 << 40,
        max_concurrency=concurrency,
        allocator=allocator,
    )


@settings(max_examples=200, deadline=None)
@given(
    requests=requests,
    batcher=st.sampled_from([Chunked(), Continuous(), DynamicChunked(target_tpot_ms=0.02)]),
    compression=st.builds(
        KvCompression,
        recent_tokens=st.integers(0, 40),
        older_kept=st.sampled_from([Fraction(0), Fraction(3, 5), Fraction(1)]),
        older_dtype=st.sampled_from(["bfloat16", "fp8", "int8"]),
    ),
    blocks=st.integers(20, 60),
    seats=st.integers(1, 8),
    budget=st.integers(90, 130),
    spread=st.sampled_from([1, 20]),
)
def test_records_are_identical_where_kv_shrinks_with_age(
    requests, batcher, compression, blocks, seats, budget, spread
):
    """On a compiled cost, whose steps then depend on two sums over the sequences."""
    footprint = compression.footprint(4, TINY.head_dim)
    cost = compile_cost(
        TINY,
        ClosedFormProfile(kinks=(100, 300)),
        max_num_batched_tokens=130,
        max_num_seqs=8,
        compression=compression,
    )
    assert_the_same_either_way(
        trace_of(*((spread * arrival, prompt, answer) for arrival, prompt, answer in requests)),
        cost,
        blocks,
        batcher=batcher,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        allocator=ShrinkingPaged(footprint),
    )


@settings(max_examples=300, deadline=None)
@given(
    talks=sessions,
    batcher=batchers,
    cost=costs,
    blocks=st.integers(30, 100),
    seats=st.integers(1, 8),
    budget=st.integers(8, 130),
    replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    concurrency=st.one_of(st.none(), st.integers(1, 5)),
    delay=st.sampled_from([0, 1000, 3500]),
    longest=st.sampled_from([100, 10**6]),
    caching=st.booleans(),
)
def test_turns_that_wait_for_answers(
    talks, batcher, cost, blocks, seats, budget, replicas, router, concurrency, delay, longest, caching
):
    """Arrivals follow from ends of steps, some at the same instant on several replicas."""
    assert_the_same_either_way(
        session_trace(talks, 4, closed=concurrency is not None),
        cost,
        blocks,
        batcher=batcher,
        router=router,
        max_num_seqs=seats,
        max_num_batched_tokens=max(budget, seats, getattr(batcher, "chunk_tokens", None) or 0),
        max_concurrency=concurrency,
        replicas=replicas,
        signal_delay_ns=delay,
        max_model_len=longest,
        prefix_caching=caching,
    )


@settings(max_examples=300, deadline=None)
@given(
    talks=sessions,
    batcher=batchers,
    cost=costs,
    blocks=st.integers(24, 60),
    seats=st.integers(1, 4),
    replicas=st.integers(2, 3),
    router=st.builds(
        PrefixAffinity, max_imbalance=st.integers(0, 3), signal=st.just("cached"), remember_blocks=st.none()
    ),
    eviction=st.sampled_from([None, Lfu(), Ttl(ttl_s=2e-5)]),
    delay=st.sampled_from([0, 1000, 3500]),
)
def test_routers_that_know_what_is_cached(
    talks, batcher, cost, blocks, seats, replicas, router, eviction, delay
):
    """Caches change in the middle of what is taken at once, and a router may only see that afterwards."""
    assert_the_same_either_way(
        session_trace(talks, 4, closed=False),
        cost,
        blocks,
        batcher=batcher,
        router=router,
        max_num_seqs=seats,
        max_num_batched_tokens=max(90, getattr(batcher, "chunk_tokens", None) or 0),
        replicas=replicas,
        signal_delay_ns=delay,
        prefix_caching=True,
        eviction=eviction,
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


@settings(max_examples=500, deadline=None)
@given(
    requests=requests,
    tenants=st.lists(st.integers(0, 1), min_size=30, max_size=30),
    contracts=st.builds(
        lambda hard, own, other: Contracts(hard, (own, replace(other, share=Fraction(1, 2))), (0, 1)),
        st.booleans(),
        tiers,
        tiers,
    ),
    batcher=batchers,
    cost=costs,
    blocks=st.integers(40, 100),
    seats=st.integers(2, 8),
    budget=st.integers(8, 130),
    replicas=st.integers(1, 2),
    caching=st.booleans(),
    concurrency=st.one_of(st.none(), st.integers(1, 10)),
)
def test_records_are_identical_with_pools(
    requests, tenants, contracts, batcher, cost, blocks, seats, budget, replicas, caching, concurrency
):
    trace = replace(
        trace_of(*requests).with_columns(tenant=tenants[: len(requests)]), tenant_names=("own", "other")
    )
    if caching:
        trace = with_prefixes(trace, [list(range(inputs // 4)) for _, inputs, _ in requests], 4)
    assert_the_same_either_way(
        trace,
        cost,
        blocks,
        batcher=batcher,
        contracts=contracts,
        max_num_seqs=seats,
        max_num_batched_tokens=max(budget, seats, getattr(batcher, "chunk_tokens", None) or 0),
        max_concurrency=concurrency,
        replicas=replicas,
        prefix_caching=caching,
    )
