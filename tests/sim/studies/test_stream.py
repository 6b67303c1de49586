"""The requests of a study, where they are turns of sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.errors import ConfigError
from sim.scenario.reading import load_scenario
from sim.simulation import build_load
from sim.studies.stream import Stream, at_once, same_requests

RAW = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "workload": {
        "input_tokens": 90,
        "output_tokens": 30,
        "request_rate": 5,
        "num_requests": 40,
        "sessions": {"turn_gap_s": 1.0},
    },
}


def test_all_at_once_waits_for_nobody_and_keeps_the_prompts():
    load = build_load(load_scenario(RAW, []))
    burst = at_once(load).trace
    assert load.trace.turns.waiting > 0
    assert burst.turns.waiting == 0
    assert not burst.arrival_ns.any()
    assert burst.turns.continues.tolist() == load.trace.turns.continues.tolist()


def test_requests_that_wait_are_not_the_same_as_those_that_do_not():
    trace = build_load(load_scenario(RAW, [])).trace
    assert same_requests(trace, replace(trace))
    assert not same_requests(trace, replace(trace, turns=trace.turns.without_waits()))
    assert not same_requests(trace, replace(trace, turns=None))


def test_a_plan_counts_turns():
    summary = "workload.sessions.context_policy={name: summary, summarise_every: 2, summary_request: %s}"
    Stream(load_scenario(RAW, [summary % "false"]))
    with pytest.raises(ConfigError, match=r"context_policy.summary_request: a plan's rate is one of turns"):
        Stream(load_scenario(RAW, [summary % "true"]))
