"""Random loads, costs and engines of every batcher, router and allocator, small and coarse enough to meet at edges."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.decision import BatcherConfig
from sim.batching.dynamic_chunked import DynamicChunked
from sim.batching.length_grouped import LengthGrouped
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch
from sim.engine.frontend import FrontendTimes
from sim.kv.allocators.arena import Arena
from sim.kv.allocators.contiguous import Contiguous
from sim.kv.allocators.grow import Grow
from sim.kv.allocators.size_class import SizeClassConfig
from sim.routing.least_loaded import LeastLoaded
from sim.routing.power_of_two import PowerOfTwo
from sim.routing.prefix_affinity import PrefixAffinity
from sim.routing.round_robin import RoundRobin
from sim.routing.session_affinity import SessionAffinity
from tests.sim.doubles import AffineCost, EveryOther

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
routers = st.sampled_from(
    [LeastLoaded(), PowerOfTwo(), PrefixAffinity(max_imbalance=1), RoundRobin(), SessionAffinity()]
)
costs = st.builds(
    AffineCost,
    base_ns=st.sampled_from([1, 500, 1000, 2000]),
    per_seq_ns=st.sampled_from([0, 7, 250]),
    per_context_ns=st.sampled_from([0, 1, 3]),
    per_window_ns=st.sampled_from([0, 2]),
    per_prefill_token_ns=st.sampled_from([0, 11, 50]),
    sliding_window=st.sampled_from([None, None, 5, 24]),
)
steep_costs = st.builds(
    AffineCost,
    base_ns=st.sampled_from([50, 100]),
    per_seq_ns=st.integers(0, 20),
    per_context_ns=st.integers(0, 3),
    per_window_ns=st.integers(0, 3),
    per_prefill_token_ns=st.integers(0, 9),
    per_prefill_context_ns=st.integers(0, 2),
    sliding_window=st.sampled_from([None, 7, 30]),
)
"""Prices in which every term weighs: for engines that are written out naively."""
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


@st.composite
def engines(
    draw: Any,
    batchers: st.SearchStrategy[BatcherConfig] = batchers,
    *,
    seats: tuple[int, int] = (1, 8),
    budget: tuple[int, int] = (8, 130),
) -> dict[str, Any]:
    """Options of `run`: a batcher, seats and a budget of tokens from these ranges, which suffices for both."""
    batcher, max_num_seqs = draw(batchers), draw(st.integers(*seats))
    least = max(max_num_seqs, getattr(batcher, "chunk_tokens", None) or 0)
    return {
        "batcher": batcher,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(draw(st.integers(*budget)), least),
        "looks_ahead": draw(st.booleans()),
    }


clusters = st.fixed_dictionaries(
    {
        "replicas": st.integers(1, 3),
        "router": routers,
        "signal_delay_ns": st.sampled_from([0, 1000, 3500]),
        "frontend": st.sampled_from(
            [
                FrontendTimes(),
                FrontendTimes(2000, 0.0),
                FrontendTimes(700, 30.0),
                FrontendTimes(300, 5.0, 250.0),
            ]
        ),
    }
)
"""Options of `run`, too."""


def callers(most: int) -> st.SearchStrategy[int | None]:
    """How many requests may be under way at once; None: all."""
    return st.one_of(st.none(), st.integers(1, most))
