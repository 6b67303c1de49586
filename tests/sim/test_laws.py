"""What holds of every run: conservation, causality, independence, scaling, odd arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.dynamic_chunked import DynamicChunked
from sim.batching.length_grouped import LengthGrouped
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch
from sim.metrics import Requests, peak_concurrency, waiting_at
from sim.routing.least_loaded import LeastLoaded
from sim.routing.round_robin import RoundRobin
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run, trace_of
from workloads.trace import Trace

COST = AffineCost(base_ns=1000, per_seq_ns=10, per_context_ns=2, per_prefill_token_ns=20)
loads = st.lists(
    st.tuples(st.integers(0, 100_000), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=40
).map(sorted)
batchers = st.sampled_from(
    [
        Chunked(),
        Continuous(),
        StaticBatch(batch_size=3),
        StaticBatch(batch_size=4, padding=True, group_by="length"),
        DynamicChunked(target_tpot_ms=0.002),
        LengthGrouped(groups=2, budget=150),
        PrefixFirst(max_overtaken=3),
    ]
)


@settings(max_examples=200, deadline=None)
@given(load=loads, batcher=batchers, replicas=st.integers(1, 3), blocks=st.integers(25, 60))
def test_conservation_and_causality(load, batcher, replicas, blocks):
    requests, logs = run(
        trace_of(*load),
        COST,
        batcher=batcher,
        replicas=replicas,
        usable_blocks=blocks,
        max_num_batched_tokens=128,
    )
    c = requests.columns
    assert requests.completed.all()
    assert (c["arrival_ns"] <= c["scheduled_ns"]).all()
    assert (c["scheduled_ns"] < c["first_token_ns"]).all()
    assert (c["first_token_ns"] <= c["last_token_ns"]).all()
    stages = requests.stages_ns
    assert all((values >= 0).all() for values in stages.values())
    assert (sum(stages.values()) == requests.e2el_ns).all()
    tokens = sum(int(log.decodes @ log.steps) + log.resumed_ns.size for log in logs)
    assert tokens + len(load) == sum(output for _, _, output in load)
    for index, log in enumerate(logs):
        assert (log.start_ns[1:] >= (log.start_ns + log.row_ns)[:-1]).all()
        assert log.step_ns.size == log.steps.sum()
        assert np.array_equal(log.step_ends_ns()[np.cumsum(log.steps) - 1], log.start_ns + log.row_ns)
        assert (log.last_used_blocks <= blocks).all()
        assert (waiting_at(requests, index, log.start_ns, log.running) >= 0).all()


def test_two_replicas_behind_round_robin_are_two_separate_runs():
    rng = np.random.default_rng(0)
    load = [
        (int(t), int(rng.integers(1, 50)), int(rng.integers(1, 30)))
        for t in np.sort(rng.integers(0, 10**6, 300))
    ]
    together, _ = run(trace_of(*load), COST, replicas=2, router=RoundRobin())
    for half in (0, 1):
        alone, _ = run(trace_of(*load[half::2]), COST)
        for name in ("scheduled_ns", "first_token_ns", "last_token_ns", "preemptions"):
            assert np.array_equal(together.columns[name][half::2], alone.columns[name])


def test_scaling_all_times_scales_all_times():
    rng = np.random.default_rng(1)
    arrivals = np.sort(rng.integers(0, 10**6, 200))
    inputs, outputs = rng.integers(1, 50, 200), rng.integers(1, 30, 200)
    base, _ = run(Trace.build(arrivals, inputs, outputs), AffineCost(100, 3, 1, 0, 2), replicas=2)
    tenfold, _ = run(Trace.build(10 * arrivals, inputs, outputs), AffineCost(1000, 30, 10, 0, 20), replicas=2)
    assert np.array_equal(10 * base.columns["last_token_ns"], tenfold.columns["last_token_ns"])


def test_the_router_leaves_arrivals_untouched():
    rng = np.random.default_rng(2)
    trace = Trace.build(
        np.sort(rng.integers(0, 10**6, 200)), rng.integers(1, 50, 200), rng.integers(1, 30, 200)
    )
    one, _ = run(trace, COST, replicas=3, router=RoundRobin())
    other, _ = run(trace, COST, replicas=3, router=LeastLoaded())
    assert np.array_equal(one.columns["arrival_ns"], other.columns["arrival_ns"])
    assert not np.array_equal(one.columns["replica"], other.columns["replica"])


def test_least_loaded_sees_what_finished_only_after_the_delay():
    """Replica 0 is done at 20; the router of the second run hears of it at 70 and sends elsewhere before."""
    load = [(0, 1, 2), (0, 1, 9), (0, 1, 9), (30, 1, 1), (71, 1, 1)]
    at_once, _ = run(trace_of(*load), constant_cost(10), replicas=3)
    assert at_once.columns["replica"].tolist() == [0, 1, 2, 0, 0]
    late, _ = run(trace_of(*load), constant_cost(10), replicas=3, signal_delay_ns=50)
    assert late.columns["replica"].tolist() == [0, 1, 2, 0, 0]
    load[3] = (30, 1, 1)
    busy = [(0, 1, 2), (0, 1, 9), (25, 1, 1), (26, 1, 1)]
    fresh, _ = run(trace_of(*busy), constant_cost(10), replicas=2)
    stale, _ = run(trace_of(*busy), constant_cost(10), replicas=2, signal_delay_ns=50)
    assert fresh.columns["replica"].tolist() == [0, 1, 0, 0]
    assert stale.columns["replica"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_odd_arrivals(fast_forward):
    """None at all; one; all at zero; at the very end of a step; outputs of one token."""
    empty, _ = run(trace_of(), COST, fast_forward=fast_forward)
    assert len(empty) == 0
    assert empty.duration_ns == 0
    one, _ = run(trace_of((0, 1, 1)), constant_cost(7), fast_forward=fast_forward)
    assert one.columns["last_token_ns"].tolist() == [7]
    burst, _ = run(trace_of(*[(0, 1, 1)] * 9), constant_cost(7), max_num_seqs=4, fast_forward=fast_forward)
    assert burst.columns["last_token_ns"].tolist() == [7] * 4 + [14] * 4 + [21]
    edge, _ = run(trace_of((0, 1, 5), (14, 1, 1), (15, 1, 1)), constant_cost(7), fast_forward=fast_forward)
    assert edge.columns["scheduled_ns"].tolist() == [0, 14, 21]


def test_a_closed_loop_keeps_its_concurrency():
    trace = trace_of(*[(0, 3, 4)] * 50)
    requests, _ = run(trace, constant_cost(10), max_concurrency=5)
    sent = requests.columns["arrival_ns"]
    assert sent[:5].tolist() == [0] * 5
    assert peak_concurrency(requests.arrival_ns, requests.last_token_ns) == 5
    assert sent[5:].tolist() == np.sort(requests.columns["last_token_ns"])[:45].tolist()
    unlimited, _ = run(trace, constant_cost(10), max_concurrency=100)
    assert unlimited.columns["arrival_ns"].max() == 0


def test_a_refused_request_frees_its_slot():
    trace = trace_of((0, 3, 4), (0, 10_000, 4), (0, 3, 4))
    requests, _ = run(trace, constant_cost(10), max_concurrency=1, usable_blocks=20)
    assert requests.columns["arrival_ns"].tolist() == [0, 40, 40]
    assert requests.completed.tolist() == [True, False, True]


def test_rejected_requests_enter_no_statistic():
    requests, _ = run(trace_of((0, 3, 4), (0, 10_000, 4)), constant_cost(10), usable_blocks=20)
    assert isinstance(requests, Requests)
    assert requests.ttft_ns.tolist() == [10]
    assert requests.good({"ttft": 1.0}).tolist() == [True]
