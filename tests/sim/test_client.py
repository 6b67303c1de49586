"""The client: every turn is sent once, in order, a think time after the answer before it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.records import Status
from sim.metrics import peak_concurrency
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run
from tests.sim.sessions import session_trace, sessions
from workloads.trace import Trace, Turns

COST = AffineCost(base_ns=1000, per_seq_ns=10, per_context_ns=2, per_prefill_token_ns=20)
BLOCK = 4


def ends_ns(trace: Trace, columns) -> np.ndarray:
    """When each request was done; one that was refused was done when it arrived."""
    refused = columns["status"] != Status.COMPLETED
    return np.where(refused, columns["arrival_ns"], columns["last_token_ns"])


@settings(max_examples=200, deadline=None)
@given(
    talks=sessions,
    replicas=st.integers(1, 3),
    blocks=st.integers(20, 60),
    longest=st.sampled_from([60, 10**6]),
    concurrency=st.one_of(st.none(), st.integers(1, 5)),
)
def test_a_turn_is_sent_a_think_time_after_the_one_before_ended(
    talks, replicas, blocks, longest, concurrency
):
    trace = session_trace(talks, BLOCK, closed=concurrency is not None)
    done, _ = run(
        trace,
        COST,
        replicas=replicas,
        usable_blocks=blocks,
        max_model_len=longest,
        max_concurrency=concurrency,
        prefix_caching=True,
    )
    c, turns = done.columns, trace.turns
    end = ends_ns(trace, c)
    assert (c["status"] >= 0).all()  # all were sent, and ended
    waits = turns.predecessor >= 0
    before = turns.predecessor[waits]
    assert np.array_equal(c["arrival_ns"][waits], end[before] + turns.think_ns[waits])
    assert (c["arrival_ns"] >= trace.arrival_ns).all()
    if concurrency is None:
        assert np.array_equal(c["arrival_ns"][~waits], trace.arrival_ns[~waits])
        return
    codes = np.unique(trace.session)
    starts = np.array([c["arrival_ns"][trace.session == code].min() for code in codes])
    finishes = np.array([end[trace.session == code].max() for code in codes])
    assert (np.diff(starts) >= 0).all()  # sessions start in order
    assert peak_concurrency(starts, finishes) <= concurrency
    for start in starts[concurrency:]:
        assert start in finishes  # a place is taken over when it comes free


def test_two_turns_by_hand():
    """Steps of 100 ns; the prompt and its first token take one. Turn 1: 0 to 300. Thinking: 50. Turn 2: 350 to 550."""
    trace = session_trace([(0, [(0, 8, 3), (50, 5, 2)])], BLOCK)
    done, _ = run(trace, constant_cost(100), prefix_caching=True)
    assert done.columns["arrival_ns"].tolist() == [0, 350]
    assert done.columns["last_token_ns"].tolist() == [300, 550]
    assert done.columns["cached_tokens"].tolist() == [0, 8]  # 10 tokens with KV, two full blocks of 4
    assert trace.arrival_ns.tolist() == [0, 50]


def test_what_follows_a_refused_request_goes_out_all_the_same():
    turns = Turns.build([-1] * 3, [-1, 0, 1], [0, 70, 0])
    trace = Trace.build([10, 80, 80], [500, 8, 600], [1, 1, 1], session=[0, 0, 0], turns=turns)
    done, _ = run(trace, constant_cost(100), max_model_len=100)
    assert done.columns["arrival_ns"].tolist() == [10, 80, 180]
    assert done.columns["status"].tolist() == [1, 0, 1]


def test_a_session_keeps_its_place_while_it_thinks():
    trace = session_trace([(0, [(0, 4, 1), (1000, 4, 1)]), (0, [(0, 4, 1)])], BLOCK, closed=True)
    done, _ = run(trace, constant_cost(100), max_concurrency=1)
    assert done.columns["arrival_ns"].tolist() == [0, 1100, 1200]
    open_stream, _ = run(trace, constant_cost(100), max_concurrency=2)
    assert open_stream.columns["arrival_ns"].tolist() == [0, 1100, 0]
