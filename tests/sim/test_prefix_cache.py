"""The prefix cache in the engine: against vLLM's block pool written out naively, and by its laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.decision import EngineLimits
from sim.engine.core import EngineCore
from sim.engine.request import RequestTable
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.evicting_paged import EvictingPagedAllocator
from sim.kv.eviction.belady import Belady
from sim.kv.eviction.fifo import Fifo
from sim.kv.eviction.length_aware import LengthAware
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.lru_lfu import LruLfu
from sim.kv.eviction.ttl import Ttl
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run, trace_of, with_prefixes
from tests.sim.exactness import assert_engine_exact
from tests.sim.reference import cached_engine
from workloads.answers import sequence_hashes
from workloads.errors import InputError

BLOCK = 4

# A prompt is a path through a small tree of shared prefixes and then its own tail: (tree path, own tokens).
prompts = st.tuples(st.lists(st.integers(0, 1), max_size=6), st.integers(1, 14))
loads = st.lists(
    st.tuples(st.integers(0, 40).map(lambda t: 50 * t), prompts, st.integers(1, 15)), min_size=1, max_size=25
).map(lambda requests: sorted(requests, key=lambda r: r[0]))


def block_ids(path: list[int]) -> list[int]:
    """Ids of a path's blocks: equal where the whole path so far is."""
    return [int("1" + "".join(map(str, path[: depth + 1])), 2) for depth in range(len(path))]


def workload(load):
    requests = [(arrival, BLOCK * len(path) + own, output) for arrival, (path, own), output in load]
    known = [block_ids(path) for _, (path, _), _ in load]
    return requests, known


@settings(max_examples=250, deadline=None)
@given(load=loads, seats=st.integers(1, 6), budget=st.integers(6, 60), blocks=st.integers(14, 40))
def test_equals_the_naive_block_pool(load, seats, budget, blocks):
    requests, known = workload(load)
    own = [
        [*ids, *(("own", i, b) for b in range(len(ids), (prompt + output - 1) // BLOCK))]
        for i, (ids, (_, prompt, output)) in enumerate(zip(known, requests, strict=True))
    ]
    expected = cached_engine(
        requests, own, step_ns=100, seats=seats, budget=budget, block_size=BLOCK, blocks=blocks
    )
    done, _ = run(
        with_prefixes(trace_of(*requests), known, BLOCK),
        constant_cost(100),
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        block_size=BLOCK,
        usable_blocks=blocks,
        prefix_caching=True,
    )
    columns = done.columns
    assert columns["cached_tokens"].tolist() == [r.cached for r in expected]
    assert columns["scheduled_ns"].tolist() == [r.scheduled for r in expected]
    assert columns["first_token_ns"].tolist() == [r.tokens[0] for r in expected]
    assert columns["last_token_ns"].tolist() == [r.tokens[-1] for r in expected]
    assert columns["preemptions"].tolist() == [r.preemptions for r in expected]


@settings(max_examples=250, deadline=None)
@given(
    load=loads,
    batcher=st.sampled_from([Chunked(), Continuous()]),
    blocks=st.integers(14, 40),
    replicas=st.integers(1, 2),
    per_context=st.sampled_from([0, 3]),
    eviction=st.sampled_from([None, Lfu(), LruLfu(), Fifo(), LengthAware(), Belady(), Ttl(ttl_s=1e-6)]),
)
def test_fast_forward_is_exact_with_a_prefix_cache(load, batcher, blocks, replicas, per_context, eviction):
    requests, known = workload(load)
    trace = with_prefixes(trace_of(*requests), known, BLOCK)
    cost = AffineCost(base_ns=70, per_seq_ns=3, per_context_ns=per_context, per_prefill_token_ns=5)
    assert_engine_exact(
        trace,
        cost,
        usable_blocks=blocks,
        batcher=batcher,
        block_size=BLOCK,
        replicas=replicas,
        prefix_caching=True,
        eviction=eviction,
    )


def test_tokens_computed_are_tokens_needed_less_cached():
    """Without preemption; the last token of a prompt is always computed."""
    requests, known = workload([(i * 5000, ([0, 1, 1, 0, 1], 4), 6) for i in range(9)])
    done, (log,) = run(
        with_prefixes(trace_of(*requests), known, BLOCK),
        constant_cost(100),
        block_size=BLOCK,
        prefix_caching=True,
    )
    cached = done.columns["cached_tokens"]
    assert cached.tolist() == [0] + [20] * 8
    prompt_tokens = sum(prompt for _, prompt, _ in requests)
    assert log.prefill_tokens.sum() == prompt_tokens - cached.sum()
    assert (log.prefix_queries, log.prefix_hits) == (prompt_tokens, cached.sum())


def test_a_prompt_cached_to_its_end_computes_its_last_block():
    requests = [(0, 8, 1), (1000, 8, 1)]
    done, (log,) = run(
        with_prefixes(trace_of(*requests), [[1, 2], [1, 2]], BLOCK),
        constant_cost(100),
        block_size=BLOCK,
        prefix_caching=True,
    )
    assert done.columns["cached_tokens"].tolist() == [0, 4]
    assert log.prefill_tokens.tolist() == [8, 4]


def test_a_warm_cache_has_served_the_requests_before():
    requests, known = workload([(0, ([1, 1, 1], 2), 3)])
    trace = with_prefixes(trace_of(*requests), known, BLOCK)
    allocator = CachedPagedAllocator(20, BLOCK)
    contents = np.array([*known[0], -7])
    allocator.warm_up(contents, 16)
    allocator.check_integrity([])
    assert allocator.free_blocks == 20
    assert allocator.find_prefix(Claim(0, int(trace.input_tokens[0]), 99, contents=contents)) == 3 * BLOCK


def test_answers_are_found_by_the_next_turn():
    """Turn 1: prompt 6, answer 7 = 12 tokens with KV, 3 full blocks; turn 2 starts with all 13 tokens."""
    trace = with_prefixes(trace_of((0, 6, 7), (50_000, 18, 2)), [[1], [1, 2, 3, 4]], BLOCK)
    trace = replace(trace, session=np.array([5, 5]))
    assert sequence_hashes(trace, BLOCK).of(0).tolist() == [1, 2, 3]
    done, _ = run(trace, constant_cost(100), block_size=BLOCK, prefix_caching=True)
    assert done.columns["cached_tokens"].tolist() == [0, 12]


def test_a_block_size_that_does_not_fit_the_trace_is_one_line():
    trace = with_prefixes(trace_of((0, 9, 1)), [[1, 2]], BLOCK)
    with pytest.raises(InputError, match="block_size: 3"):
        sequence_hashes(trace, 3)


@settings(max_examples=150, deadline=None)
@given(
    load=loads,
    blocks=st.integers(14, 30),
    eviction=st.sampled_from([Lfu(), LruLfu(), Fifo(), LengthAware(), Belady(), Ttl(ttl_s=2e-6)]),
)
def test_blocks_are_accounted_for_under_every_policy(load, blocks, eviction):
    requests, known = workload(load)
    trace = with_prefixes(trace_of(*requests), known, BLOCK)
    table = RequestTable(trace, sequence_hashes(trace, BLOCK))
    uses = [content for i in range(len(table)) for content in table.contents(i, BLOCK).tolist()]
    allocator = EvictingPagedAllocator(blocks, BLOCK, eviction.build(blocks, uses))
    limits = EngineLimits(4, 20, BLOCK)
    core = EngineCore(
        limits,
        Chunked().build(limits, constant_cost(1)),
        allocator,
        table,
        max_model_len=999,
    )
    waiting = [i for i in range(len(table)) if core.submit(i) is None]
    done, now = [], 0
    while (plan := core.schedule(now)) is not None:
        core.check_integrity()
        now += 700
        done += [seq.index for seq in core.commit(plan, 1, now)]
        core.check_integrity()
    assert sorted(done) == waiting
    assert allocator.free_blocks == blocks


def test_what_a_preempted_sequence_finds_again_is_no_hit_of_the_cache():
    """Two growing sequences in too few blocks: the victim finds its own blocks again, and the hit rate stays 0."""
    requests = [(0, 8, 30), (0, 8, 30)]
    done, (log,) = run(
        with_prefixes(trace_of(*requests), [[1, 2], [3, 4]], BLOCK),
        constant_cost(100),
        block_size=BLOCK,
        usable_blocks=12,
        prefix_caching=True,
    )
    assert done.columns["preemptions"].sum() > 0
    assert (log.prefix_queries, log.prefix_hits) == (16, 0)
    assert log.preempted_queries > log.preempted_hits > 0
