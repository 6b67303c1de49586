"""The loop in real time is the simulator's: on a clock that a cost model drives, every record is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.step_log import read_step_log
from calibration.validate_steps import compare_steps
from hwbackend.engine.realtime import Served, serve
from hwbackend.engine.replay import first_difference
from hwbackend.engine.step_records import write_step_log
from hwbackend.engine.wall_clock import MonotonicClock
from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.engine.cluster import EngineSetup, prefixes
from sim.kv.allocators.paged import Paged
from sim.kv.build import KvSetup
from sim.routing.least_loaded import LeastLoaded
from sim.routing.prefix_affinity import PrefixAffinity
from tests.hwbackend.engine_doubles import ManualClock, PricedExecutor
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of
from tests.sim.sessions import session_trace, sessions
from tests.sim.strategies import allocators, batchers, costs, requests
from workloads.trace import Trace


def setup_of(
    *,
    batcher=None,
    usable_blocks=1000,
    allocator=None,
    prefix_caching=False,
    eviction=None,
    max_model_len=1 << 40,
):
    kv = KvSetup(
        usable_blocks,
        4,
        max_model_len,
        allocator=allocator or Paged(),
        prefix_caching=prefix_caching,
        eviction=eviction,
    )
    return EngineSetup(EngineLimits(8, 64, 4), batcher or Chunked(), kv)


def serve_priced(trace: Trace, cost: AffineCost, engine: EngineSetup, **options: Any) -> Served:
    clock = ManualClock()
    return serve(
        trace,
        cost,
        engine,
        hashes=prefixes(trace, engine.limits.block_size),
        make_executor=lambda table, core: PricedExecutor(cost, clock),
        make_clock=lambda: clock,
        router=options.pop("router", LeastLoaded()),
        router_seed=np.random.SeedSequence(1),
        **options,
    )


def assert_as_simulated(trace: Trace, cost: AffineCost, *, options: dict, **engine: Any) -> None:
    served = serve_priced(trace, cost, setup_of(**engine), **options)
    blocks = engine.pop("usable_blocks", 1000)
    done, logs = run(trace, cost, usable_blocks=blocks, fast_forward=False, **engine, **options)
    for name, column in done.columns.items():
        assert np.array_equal(column, served.requests.columns[name]), name
    for name, column in vars(logs[0]).items():
        assert np.array_equal(column, getattr(served.steps, name)), name
    setup = setup_of(usable_blocks=blocks, **engine)
    assert first_difference(served, setup, cost) is None


@settings(max_examples=150, deadline=None)
@given(
    requests, batchers, costs, st.integers(35, 80), st.sampled_from([None, 1, 3]), st.sampled_from([0, 3000])
)
def test_engine_and_simulator_write_the_same_records(asked, batcher, cost, blocks, concurrency, delay):
    trace = trace_of(*asked)
    if concurrency is not None:
        trace = trace.with_columns(arrival_ns=np.zeros(len(trace), dtype=np.int64))
    if getattr(batcher, "needs_prefix_cache", False):
        batcher = Chunked()
    options = {"max_concurrency": concurrency, "signal_delay_ns": delay}
    assert_as_simulated(trace, cost, batcher=batcher, usable_blocks=blocks, options=options)


@settings(max_examples=60, deadline=None)
@given(sessions, batchers, costs, st.integers(80, 200), st.booleans())
def test_sessions_with_a_prefix_cache(talks, batcher, cost, blocks, closed):
    trace = session_trace(talks, 4, closed=closed)
    options = {"max_concurrency": 2 if closed else None, "router": PrefixAffinity(max_imbalance=1)}
    assert_as_simulated(
        trace, cost, batcher=batcher, usable_blocks=blocks, prefix_caching=True, options=options
    )


@settings(max_examples=60, deadline=None)
@given(requests, allocators, costs)
def test_allocators_of_ranges(asked, allocator, cost):
    assert_as_simulated(
        trace_of(*asked), cost, allocator=allocator, usable_blocks=200, max_model_len=136, options={}
    )


def test_the_log_is_read_by_validate_steps(tmp_path):
    trace = trace_of(*((1000 * i, 7 * i % 40 + 3, 9) for i in range(20)))
    cost = AffineCost(base_ns=900, per_seq_ns=70, per_prefill_token_ns=11)
    served = serve_priced(trace, cost, setup_of(usable_blocks=45))
    assert any(record.preempted for record in served.records)
    write_step_log(
        tmp_path,
        served.records,
        served.table,
        served.core,
        engine="servetwin-engine",
        version="1",
        name="test",
        prefix_caching=False,
    )
    comparison = compare_steps(read_step_log(tmp_path))
    assert comparison.steps == len(served.records)
    assert comparison.exact
    assert set(comparison.matching_by_field.values()) == {comparison.steps}


def test_a_changed_step_is_found():
    trace = trace_of((0, 9, 5), (10, 9, 5))
    cost = AffineCost(base_ns=900)
    served = serve_priced(trace, cost, setup_of())
    other = setup_of(batcher=Chunked(chunk_tokens=3))
    difference = first_difference(served, other, cost)
    assert difference is not None
    assert difference[0] == 0


def test_real_time_passes_and_arrivals_keep_theirs():
    trace = trace_of((0, 5, 3), (2_000_000, 5, 3), (40_000_000, 5, 2))
    clock = MonotonicClock

    class Sleeping(PricedExecutor):
        def run(self, core, plan):
            import time

            time.sleep(0.003)

    served = serve(
        trace,
        AffineCost(),
        setup_of(),
        hashes=None,
        make_executor=lambda table, core: Sleeping(AffineCost(), ManualClock()),
        make_clock=clock,
        router=LeastLoaded(),
        router_seed=np.random.SeedSequence(1),
    )
    columns = served.requests.columns
    assert columns["arrival_ns"].tolist() == [0, 2_000_000, 40_000_000]
    assert (columns["scheduled_ns"] >= columns["arrival_ns"]).all()
    assert (columns["first_token_ns"] >= columns["scheduled_ns"] + 3_000_000).all()
    assert (columns["last_token_ns"] > columns["first_token_ns"]).all()
    assert set(columns["scheduled_ns"]) <= {record.start_ns for record in served.records}
    ends = [record.end_ns for record in served.records]
    assert all(record.start_ns >= end for record, end in zip(served.records[1:], ends, strict=False))
