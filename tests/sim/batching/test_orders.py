"""Who is next: against naive choosers, by hand, and nobody overtaken beyond the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.batching.length_grouped import LengthGrouped
from sim.batching.orders.aged import AgedOrder
from sim.batching.orders.length_groups import LengthGroups
from sim.batching.orders.longest_prefix import LongestPrefix
from sim.batching.orders.nearest_length import NearestLength
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch
from sim.engine.core import EngineCore
from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.allocators.paged import PagedAllocator
from tests.sim.doubles import constant_cost
from tests.sim.engines import run, trace_of, with_prefixes

BLOCK = 4


@dataclass
class Queue:
    """Waiting prompts as a batcher sees them, (tokens, cached tokens, overtaken) each."""

    waiting: list[tuple[int, int, int]] = field(default_factory=list)

    def __len__(self):
        return len(self.waiting)

    def tokens(self, place):
        return self.waiting[place][0]

    def cached_tokens(self, place):
        return self.waiting[place][1]

    def overtaken(self, place):
        return self.waiting[place][2]

    def arrival_ns(self, place):
        return place


queues = st.builds(
    Queue, st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(0, 3)), min_size=1)
)


@given(
    lengths=st.lists(st.integers(1, 40), max_size=60), groups=st.integers(1, 6), history=st.integers(1, 20)
)
def test_a_group_is_a_quantile_of_the_latest_arrivals(lengths, groups, history):
    order = LengthGroups(groups, history)
    for tokens in lengths:
        order.arrived(tokens)
    latest = lengths[-history:]
    for tokens in range(1, 42):
        shorter = sum(length < tokens for length in latest)
        expected = min(math.floor(groups * shorter / len(latest)), groups - 1) if latest else 0
        assert order.group(tokens) == expected


def test_groups_share_distinct_lengths_equally():
    order = LengthGroups(groups=4, history=100)
    lengths = np.random.default_rng(1).permutation(np.arange(1, 101) ** 2).tolist()
    for tokens in lengths:
        order.arrived(tokens)
    assert np.bincount([order.group(tokens) for tokens in lengths]).tolist() == [25] * 4


@given(queue=queues, taken=st.integers(1, 30), lookahead=st.integers(1, 8), history=st.integers(1, 12))
def test_the_group_of_the_last_goes_on_and_then_that_of_the_oldest(queue, taken, lookahead, history):
    groups = LengthGroups(3, history)
    for tokens, _, _ in queue.waiting:
        groups.arrived(tokens)
    groups.taken(taken)
    alike = [
        place
        for place, (tokens, _, _) in enumerate(queue.waiting[:lookahead])
        if groups.group(tokens) == groups.group(taken)
    ]
    oldest = queue.waiting[0][2] >= 3
    assert AgedOrder(groups, lookahead, 3).choose(queue, 0) == (0 if oldest or not alike else alike[0])


@given(queue=queues, lookahead=st.integers(1, 8))
def test_the_longest_cached_prefix_is_first_and_the_older_of_equals(queue, lookahead):
    seen = queue.waiting[:lookahead]
    expected = min(range(len(seen)), key=lambda place: (-seen[place][1], place))
    if seen[0][2] >= 2:
        expected = 0
    assert AgedOrder(LongestPrefix(), lookahead, 2).choose(queue, 0) == expected


@given(queue=queues, leader=st.integers(1, 30), lookahead=st.integers(1, 8))
def test_the_nearest_length_joins_the_batch(queue, leader, lookahead):
    order = NearestLength(lookahead)
    order.start_batch()
    assert order.choose(queue, 0) == 0
    order.taken(leader)
    order.taken(leader + 100)  # who leads is who was first
    seen = [abs(tokens - leader) for tokens, _, _ in queue.waiting[:lookahead]]
    assert order.choose(queue, 0) == seen.index(min(seen))
    order.start_batch()
    assert order.choose(queue, 0) == 0


def admissions(core: EngineCore, arrivals: list[tuple[int, int, int]]) -> list[int]:
    """Run an engine a step a nanosecond; the order in which requests were admitted."""
    return [index for step in admissions_by_step(core, arrivals) for index in step]


def admissions_by_step(core: EngineCore, arrivals: list[tuple[int, int, int]]) -> list[list[int]]:
    """The same, for each step."""
    steps: list[list[int]] = []
    admitted: set[int] = set()
    coming = list(range(len(arrivals)))
    for now in range(100_000):
        while coming and arrivals[coming[0]][0] <= now:
            assert core.submit(coming.pop(0)) is None
        plan = core.schedule(now)
        if plan is None:
            if not coming and core.wake_ns is None:
                return steps
            continue
        core.check_integrity()
        steps.append([seq.index for seq, _ in plan.chunks if seq.index not in admitted])
        admitted.update(steps[-1])
        core.commit(plan, 1, now + 1)
    raise AssertionError("it never ended")


paths = st.lists(st.integers(0, 1), max_size=4)
loads = st.lists(st.tuples(st.integers(0, 30), paths, st.integers(1, 12), st.integers(1, 8)), min_size=2).map(
    lambda load: sorted(load, key=lambda request: request[0])
)


queued_loads = st.lists(
    st.tuples(st.integers(0, 6), paths, st.integers(1, 12), st.integers(1, 8)), min_size=8, max_size=25
).map(lambda load: sorted(load, key=lambda request: request[0]))
"""So many near each other that most of them wait."""


def engine_of(load, batcher, *, seats=2, budget=40, blocks=30, caching=True):
    arrivals = [(at, BLOCK * len(path) + own, output) for at, path, own, output in load]
    known = [
        [int("1" + "".join(map(str, path[: d + 1])), 2) for d in range(len(path))] for _, path, _, _ in load
    ]
    trace = with_prefixes(trace_of(*arrivals), known, BLOCK)
    limits = EngineLimits(seats, budget, BLOCK)
    allocator = (CachedPagedAllocator if caching else PagedAllocator)(blocks, BLOCK)
    table = RequestTable(trace, trace.hashes if caching else None)
    core = EngineCore(
        limits, batcher.build(limits, constant_cost(1)), allocator, table, max_model_len=1 << 30
    )
    return core, arrivals


@given(
    load=queued_loads,
    kind=st.sampled_from(["length", "prefix", "static_prefix"]),
    most=st.integers(0, 4),
    lookahead=st.integers(1, 8),
    seats=st.integers(1, 3),
)
def test_nobody_is_overtaken_more_often_than_allowed(load, kind, most, lookahead, seats):
    """An overtaking: a request that came later is admitted before. Without preemptions every admission is a choice."""
    options = {"lookahead": lookahead, "max_overtaken": most}
    batcher = {
        "length": LengthGrouped(groups=3, history=6, budget=60, **options),
        "prefix": PrefixFirst(**options),
        "static_prefix": StaticBatch(batch_size=2, group_by="prefix", **options),
    }[kind]
    core, arrivals = engine_of(load, batcher, seats=seats, blocks=200)
    order = admissions(core, arrivals)
    assert sorted(order) == list(range(len(load)))
    assert core.preemptions == 0
    for place, index in enumerate(order):
        overtook = [other for other in order[:place] if other > index]
        assert len(overtook) <= most


@given(load=loads, size=st.integers(1, 4), budget=st.integers(35, 70), lookahead=st.integers(2, 9))
def test_every_batch_of_similar_lengths_takes_the_oldest(load, size, budget, lookahead):
    """Also where the tokens of a step close a batch before its seats do."""
    batcher = StaticBatch(batch_size=size, group_by="length", padding=True, lookahead=lookahead)
    core, arrivals = engine_of(load, batcher, seats=4, budget=budget, blocks=200, caching=False)
    batches = [batch for batch in admissions_by_step(core, arrivals) if batch]
    waiting = set(range(len(load)))
    for batch in batches:
        assert min(batch) == min(waiting)
        waiting -= set(batch)
    assert not waiting


@given(load=loads, most=st.integers(0, 3))
def test_ageing_of_none_is_first_come_first_served(load, most):
    expected = admissions(*engine_of(load, Chunked()))
    for batcher in (PrefixFirst(max_overtaken=0), PrefixFirst(lookahead=1, max_overtaken=most)):
        assert admissions(*engine_of(load, batcher)) == expected


@given(load=loads, seats=st.integers(1, 6), budget=st.integers(6, 60))
def test_no_shared_block_is_computed_twice_while_it_is_there(load, seats, budget):
    """Who shares what another computes finds it, in the same step too: with room for all, each block is computed once.

    The last token of a prompt is always computed, so a prompt that is one of shared blocks alone computes its last.
    """
    load = [(at, path, own % (BLOCK - 1) + 1, output) for at, path, own, output in load]
    core, arrivals = engine_of(load, PrefixFirst(), seats=seats, budget=max(budget, seats), blocks=2000)
    admissions(core, arrivals)
    shared = {tuple(path[: depth + 1]) for _, path, _, _ in load for depth in range(len(path))}
    own = sum(tokens for _, _, tokens, _ in load)
    assert core.prefix_queries - core.prefix_hits == BLOCK * len(shared) + own


def test_the_longest_prefix_by_hand():
    """One seat. A computes blocks 1 2; then D (1 2 found) before C (1 found) before B (none); all came with A."""
    trace = trace_of((0, 10, 1), (0, 12, 1), (0, 10, 1), (0, 11, 1))
    trace = with_prefixes(trace, [[1, 2], [7, 8], [1, 5], [1, 2]], BLOCK)
    requests, _ = run(
        trace, constant_cost(10), batcher=PrefixFirst(), max_num_seqs=1, prefix_caching=True, block_size=BLOCK
    )
    c = requests.columns
    assert c["scheduled_ns"].tolist() == [0, 30, 20, 10]
    assert c["cached_tokens"].tolist() == [0, 0, 4, 8]


def test_one_group_at_a_time_by_hand():
    """One seat, two groups, lengths 1 to 4 short: the first is short, so the short ones go before the long."""
    trace = trace_of((0, 2, 1), (0, 30, 1), (0, 3, 1), (0, 40, 1), (0, 1, 1))
    requests, _ = run(
        trace,
        constant_cost(10),
        batcher=LengthGrouped(groups=2, budget=100),
        max_num_seqs=1,
    )
    assert requests.columns["scheduled_ns"].tolist() == [0, 30, 10, 40, 20]


@given(load=loads, budget=st.integers(1, 80))
def test_the_budget_bounds_the_tokens_of_a_batch_as_it_grows_by_admission(load, budget):
    core, arrivals = engine_of(load, LengthGrouped(budget=budget), seats=4, caching=False)
    coming, before = list(range(len(load))), set()
    for now in range(100_000):
        while coming and arrivals[coming[0]][0] <= now:
            core.submit(coming.pop(0))
        plan = core.schedule(now)
        if plan is None:
            if not coming:
                break
            continue
        tokens = plan.context_tokens + sum(seq.target for seq in core.running if seq.joined_step < 0)
        if set(core.running) - before and len(core.running) > 1:
            assert tokens <= budget
        core.commit(plan, 1, now + 1)
        before = set(core.running)
    assert core.num_waiting == 0 == core.num_running


def test_budgets_are_those_of_the_machine():
    limits = EngineLimits(8, 64, 16, kv_tokens=1000, l2_tokens=300)
    cost = constant_cost(1)

    def most(**options) -> int:
        return LengthGrouped(**options).build(limits, cost).plan(None, 0).batch_tokens

    assert most(budget="kv_pool") == 900
    assert most(budget="kv_pool", kv_share=0.25) == 250
    assert most(budget="l2") == 300
    assert most(budget=77) == 77
    with pytest.raises(ConfigError, match=r"policies\.batcher\.budget: l2"):
        LengthGrouped(budget="l2").build(EngineLimits(8, 64, 16), cost)
    with pytest.raises(ValueError, match="kv_share acts with budget: kv_pool"):
        LengthGrouped(budget="l2", kv_share=0.5)
    with pytest.raises(ValueError, match="max_overtaken acts on batches grouped by prefix"):
        StaticBatch(max_overtaken=3)
