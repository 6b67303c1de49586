"""The engine's order of things: by hand, against a naive engine, and by its laws after every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.decision import EngineLimits, StepLimits
from sim.batching.static_batch import StaticBatch
from sim.engine.core import EngineCore
from sim.engine.records import Status
from sim.engine.request import RequestTable
from sim.errors import InvariantError
from sim.kv.allocators.paged import PagedAllocator
from sim.metrics import itl_statistics, peak_output_tokens_per_s
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run, trace_of
from tests.sim.reference import chunked_engine
from tests.sim.strategies import steep_costs

COST = AffineCost(base_ns=100, per_seq_ns=10, per_prefill_token_ns=1)


def test_three_requests_by_hand():
    """Blocks of 4 tokens, 8 of them usable, budget 10, three seats: two chunked prompts and one preemption.

    step  starts  what runs                                           blocks after scheduling     lasts   ends
    0     0       A prompt 6, B prompt 4 of 12                        A 2, B 1                    110     110
    1     110     A decodes (7), B 8 of 12 more and done              A 2, B 3                    118     228
    2     228     A (8), B (13), C admitted with its prompt of 5      A 2, B 4, C 2 = 8           125     353
    3     353     A (9) needs a third block, none is free: C gives    A 3, B 4                    120     473
                  way; B (14)
    4     473     A (10), B (15); C needs 2 blocks for 6 tokens,      A 3, B 4                    120     593
                  1 is free
    5     593     A (11), B (16); A has its 6 tokens                  A 3, B 4                    120     713
    6     713     B (17) needs a fifth block; C computes 5 + 1 = 6    B 5, C 2                    116     829
    7     829     B (18), C (7)                                       B 5, C 2                    120     949
    """
    trace = trace_of((0, 6, 6), (0, 12, 7), (200, 5, 3))
    requests, (log,) = run(
        trace, COST, max_num_seqs=3, max_num_batched_tokens=10, block_size=4, usable_blocks=8
    )
    c = requests.columns
    assert c["scheduled_ns"].tolist() == [0, 0, 228]
    assert c["first_token_ns"].tolist() == [110, 228, 353]
    assert c["last_token_ns"].tolist() == [713, 949, 949]
    assert c["preemptions"].tolist() == [0, 0, 1]
    assert c["paused_decode_ns"].tolist() == [0, 0, 713 - 353]
    assert log.step_ns.tolist() == [110, 118, 125, 120, 120, 120, 116, 120]
    assert log.resumed_gaps_ns.tolist() == [829 - 353]
    assert np.repeat(log.decodes, log.steps).tolist() == [0, 1, 2, 2, 2, 2, 1, 2]
    assert log.prefill_tokens[log.prompts > 0].tolist() == [10, 8, 5, 6]
    assert requests.stages_ns["queue"].tolist() == [0, 0, 28]
    assert requests.stages_ns["preempted"].tolist() == [0, 0, 360]


loads = st.lists(
    st.tuples(st.integers(0, 40).map(lambda t: 100 * t), st.integers(1, 60), st.integers(1, 25)),
    min_size=1,
    max_size=25,
).map(sorted)


@settings(max_examples=300, deadline=None)
@given(
    load=loads,
    seats=st.integers(1, 6),
    budget=st.integers(6, 80),
    block_size=st.integers(1, 9),
    blocks=st.integers(84, 140),
    cost=steep_costs,
)
def test_equals_a_naive_engine(load, seats, budget, block_size, blocks, cost):
    """Every lifecycle time of every request, and every gap between tokens."""
    blocks = -(-blocks // block_size)
    expected = chunked_engine(load, cost, seats=seats, budget=budget, block_size=block_size, blocks=blocks)
    requests, logs = run(
        trace_of(*load),
        cost,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        block_size=block_size,
        usable_blocks=blocks,
    )
    c = requests.columns
    assert c["scheduled_ns"].tolist() == [r.scheduled for r in expected]
    assert c["first_token_ns"].tolist() == [r.tokens[0] for r in expected]
    assert c["last_token_ns"].tolist() == [r.tokens[-1] for r in expected]
    assert c["preemptions"].tolist() == [r.preemptions for r in expected]
    gaps = np.concatenate([np.diff(r.tokens) for r in expected])
    if gaps.size:
        itl = itl_statistics(logs)
        assert itl["mean_itl_ms"] == pytest.approx(gaps.mean() / 1e6, rel=1e-12)
        assert itl["std_itl_ms"] == pytest.approx(gaps.std() / 1e6, rel=1e-9, abs=1e-12)
        for q in (50, 90, 95, 99):
            assert itl[f"p{q}_itl_ms"] == pytest.approx(np.percentile(gaps, q) / 1e6, rel=1e-12)
    assert peak_output_tokens_per_s(requests, logs) == sum(
        len(r.tokens) for r in expected
    )  # all in one second


def make_core(load, batcher, *, seats, budget, block_size, blocks):
    limits = EngineLimits(seats, budget, block_size)
    table = RequestTable(trace_of(*load))
    return EngineCore(
        limits, batcher.build(limits, COST), PagedAllocator(blocks, block_size), table, max_model_len=1 << 30
    )


@settings(max_examples=200, deadline=None)
@given(
    load=loads,
    batcher=st.sampled_from([Chunked(), Chunked(chunk_tokens=7), Continuous(), StaticBatch()]),
    seats=st.integers(1, 6),
    budget=st.integers(90, 120),
    blocks=st.integers(21, 40),
    ask_tables=st.booleans(),
)
def test_laws_hold_after_every_step(load, batcher, seats, budget, blocks, ask_tables):
    """Blocks, seats, budget, sums; every request finishes; tokens computed = tokens needed + recomputed."""
    core = make_core(load, batcher, seats=seats, budget=budget, block_size=4, blocks=blocks)
    accepted = [i for i in range(len(load)) if core.submit(i) is None]
    computed, finished, wasted, now = 0, [], 0, 0
    tables: dict[int, list[int]] = {}
    for _ in range(100_000):
        progress = {s: s.kv for s in core.running}
        held = {
            s: s.computed if s.joined_step < 0 else s.target + core.step - s.joined_step for s in progress
        }
        plan = core.schedule(now)
        if plan is None:
            if core.wake_ns is None:
                break
            now = core.wake_ns
            continue
        wasted += sum(held[s] for s in plan.preempted)
        core.check_integrity()
        assert plan.decodes + sum(n for n, _ in plan.shapes) <= budget
        assert core.num_running <= seats
        computed += plan.decodes + sum(n for n, _ in plan.shapes)
        if ask_tables:
            for seq in core.running:
                table = core.allocator.block_table(seq.kv)
                if seq.index in tables and seq not in plan.preempted and seq in progress:
                    assert table[: len(tables[seq.index])] == tables[seq.index]  # a block keeps its id
                tables[seq.index] = table
        now += 1
        finished += [s.index for s in core.commit(plan, 1, now)]
        core.check_integrity()
    assert sorted(finished) == accepted
    assert core.allocator.free_blocks == blocks
    needed = sum(load[i][1] + load[i][2] - 1 for i in accepted)
    assert computed == needed + wasted


def test_what_can_never_run_is_refused_by_name():
    requests, _ = run(
        trace_of((0, 30, 10), (0, 36, 2), (0, 3, 70), (1, 1, 1)),
        COST,
        batcher=Continuous(),
        max_num_batched_tokens=36,
        block_size=4,
        usable_blocks=15,
        max_model_len=70,
    )
    assert requests.columns["status"].tolist() == [
        Status.EXCEEDS_MAX_NUM_BATCHED_TOKENS,
        Status.EXCEEDS_MAX_NUM_BATCHED_TOKENS,
        Status.EXCEEDS_MAX_MODEL_LEN,
        Status.COMPLETED,
    ]
    assert requests.columns["last_token_ns"].tolist() == [-1, -1, -1, 102]
    big, _ = run(trace_of((0, 40, 21)), COST, block_size=4, usable_blocks=14)
    assert big.columns["status"].tolist() == [Status.EXCEEDS_KV_CACHE]
    fits, _ = run(
        trace_of((0, 40, 17)), COST, block_size=4, usable_blocks=14
    )  # 56 tokens of KV: the last has none
    assert fits.columns["status"].tolist() == [Status.COMPLETED]


def test_nobody_overtakes_a_head_that_does_not_fit():
    """Eight blocks: the second request needs seven and must wait for the first, and the small third behind it."""
    requests, _ = run(trace_of((0, 8, 8), (1, 26, 1), (2, 2, 1)), COST, block_size=4, usable_blocks=8)
    scheduled = requests.columns["scheduled_ns"]
    assert scheduled[1] == requests.columns["last_token_ns"][0]
    assert scheduled[2] == requests.columns["last_token_ns"][1] or scheduled[2] == scheduled[1]


def test_static_batch_runs_to_its_end():
    requests, _ = run(
        trace_of((0, 4, 2), (0, 4, 9), (1, 4, 1), (1, 4, 1), (1, 4, 1)),
        constant_cost(10),
        batcher=StaticBatch(batch_size=2),
    )
    c = requests.columns
    assert c["scheduled_ns"].tolist() == [0, 0, 90, 90, 100]
    assert c["last_token_ns"].tolist() == [20, 90, 100, 100, 110]


def test_static_batch_waits_for_its_window():
    """0.00005 ms = 50 ns from the oldest arrival on; a full batch does not wait."""
    batcher = StaticBatch(batch_size=3, max_wait_ms=0.00005)
    requests, _ = run(
        trace_of((5, 1, 1), (20, 1, 1), (100, 1, 1), (101, 1, 1), (102, 1, 1)),
        constant_cost(3),
        batcher=batcher,
    )
    assert requests.columns["scheduled_ns"].tolist() == [55, 55, 102, 102, 102]


def test_a_policy_that_plans_nothing_for_admitted_sequences_is_a_fault():
    class Stuck:
        looks_every_step = False
        max_prompt_tokens = None

        def plan(self, view, now_ns):
            return StepLimits(0 if view.num_running else 4)

    core = make_core([(0, 20, 3)], Chunked(), seats=2, budget=8, block_size=4, blocks=20)
    core.batcher = Stuck()
    core.submit(0)
    plan = core.schedule(0)
    core.commit(plan, 1, 10)
    with pytest.raises(InvariantError, match="nothing runs"):
        core.schedule(10)
