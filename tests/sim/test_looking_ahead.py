"""An engine that plans a step ahead (async scheduling), and the API server before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.frontend import FrontendTimes
from sim.profile import HostOverhead, load_profile
from sim.scenario.reading import load_scenario
from sim.service import build_service
from sim.simulation import build_load, simulate, simulate_requests
from tests.sim.doubles import AffineCost, constant_cost
from tests.sim.engines import run, trace_of
from tests.sim.strategies import requests

STEP = 100


def scheduled(arrival: int, *, looks_ahead: bool, fast_forward: bool = True) -> int:
    """When a request is first scheduled beside one that decodes for long, in steps of 100 ns."""
    trace = trace_of((0, 4, 40), (arrival, 4, 2))
    done, _ = run(trace, constant_cost(STEP), looks_ahead=looks_ahead, fast_forward=fast_forward)
    return int(done.columns["scheduled_ns"][1])


@given(st.integers(1, 2500), st.booleans())
def test_who_comes_in_a_step_is_in_the_next_but_one(arrival, fast_forward):
    step = -(-arrival // STEP)  # the one that starts next, at once where the request comes as it starts
    assert scheduled(arrival, looks_ahead=False, fast_forward=fast_forward) == step * STEP
    assert scheduled(arrival, looks_ahead=True, fast_forward=fast_forward) == (step + 1) * STEP


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_an_engine_that_was_idle_looks_at_once(outputs):
    """Alone in the engine, a request waits for nobody: both engines do the same."""
    trace = trace_of(*((0, 3, output) for output in outputs))
    one, other = (
        run(trace, constant_cost(STEP), max_concurrency=1, looks_ahead=looks_ahead)[0]
        for looks_ahead in (False, True)
    )
    assert one.columns["last_token_ns"].tolist() == other.columns["last_token_ns"].tolist()
    assert other.columns["last_token_ns"].tolist() == (STEP * np.cumsum(outputs)).tolist()


@settings(deadline=None)
@given(requests, st.booleans())
def test_the_same_tokens_are_computed(load, looks_ahead):
    trace = trace_of(*load)
    _, (log,) = run(trace, AffineCost(base_ns=1000), looks_ahead=looks_ahead)
    assert log.prefill_tokens.sum() == trace.input_tokens.sum()
    assert log.decodes @ log.steps == (trace.output_tokens - 1).sum()


def test_a_closed_loop_pays_a_step_a_request():
    """Two callers, seats for both: each request waits out the plan that was made before it came.

    Steps take 100 ns. In turn: who is answered at the end of step k is prefilled in step k + 1, so a request of n
    tokens takes n steps. Looking ahead it is in step k + 2: n + 1 steps, but where both were answered in the same
    step, after which the engine is idle and looks at once.
    """
    tokens, count = 5, 40
    trace = trace_of(*((0, 1, tokens + i % 2) for i in range(count)))
    in_turn, ahead = (
        run(trace, constant_cost(STEP), max_concurrency=2, looks_ahead=one)[0] for one in (False, True)
    )
    waits = ahead.e2el_ns - in_turn.e2el_ns
    assert set(waits.tolist()) <= {0, STEP}
    both = np.isin(
        ahead.arrival_ns, [end for end in ahead.last_token_ns if (ahead.last_token_ns == end).sum() == 2]
    )
    assert (waits[2:-1] == np.where(both, 0, STEP)[2:-1]).all()
    assert in_turn.e2el_ns.tolist() == [STEP * (tokens + i % 2) for i in range(count)]


class TestFrontend:
    def test_requests_are_on_their_way_for_a_while(self):
        trace = trace_of((0, 4, 3), (5000, 6, 2))
        done, _ = run(trace, constant_cost(STEP), frontend=FrontendTimes(latency_ns=700))
        assert done.stages_ns["tokenise"].tolist() == [700, 700]
        assert done.ttft_ns.tolist() == [800, 800]

    def test_prompts_are_tokenised_one_after_the_other(self):
        trace = trace_of((0, 4, 1), (0, 10, 1), (1000, 5, 1))
        done, _ = run(trace, constant_cost(1), frontend=FrontendTimes(latency_ns=50, token_ns=10.0))
        assert done.columns["queued_ns"].tolist() == [90, 190, 1100]

    def test_who_comes_to_a_busy_engine_waits_for_the_tokens_of_all(self):
        """Two sequences run from the first step on; the third request comes while they do, the fourth after them."""
        trace = trace_of((0, 4, 9), (0, 4, 9), (450, 4, 1), (5000, 4, 1))
        done, _ = run(trace, constant_cost(STEP), frontend=FrontendTimes(stream_ns=25.0))
        assert (done.columns["queued_ns"] - done.arrival_ns).tolist() == [0, 0, 50, 0]

    def test_nobody_overtakes_though_fewer_run(self):
        """A request that finds four sequences is on its way for 400 ns; they end, and the next one finds none."""
        trace = trace_of(*((0, 4, 2) for _ in range(4)), (150, 4, 1), (250, 4, 1))
        done, _ = run(trace, constant_cost(STEP), frontend=FrontendTimes(stream_ns=100.0))
        assert done.columns["queued_ns"].tolist() == [0, 0, 0, 0, 550, 550]

    @settings(deadline=None)
    @given(
        requests, st.integers(0, 5000), st.sampled_from([0.0, 3.0, 40.0]), st.sampled_from([0.0, 70.0, 900.0])
    )
    def test_stages_sum_to_all_of_the_time(self, load, latency_ns, token_ns, stream_ns):
        trace = trace_of(*load)
        done, _ = run(trace, AffineCost(base_ns=900), frontend=FrontendTimes(latency_ns, token_ns, stream_ns))
        assert (sum(done.stages_ns.values()) == done.e2el_ns).all()
        assert (done.stages_ns["tokenise"] >= latency_ns).all()
        assert (np.diff(done.columns["queued_ns"]) >= 0).all()

    def test_each_replica_has_one_of_its_own(self):
        trace = trace_of(*((0, 10, 1) for _ in range(4)))
        done, _ = run(trace, constant_cost(1), replicas=2, frontend=FrontendTimes(token_ns=10.0))
        assert sorted(done.columns["queued_ns"].tolist()) == [100, 100, 200, 200]

    def test_a_profile_says_how_long(self):
        scenario = load_scenario(
            {
                "model": "llama-3.1-8b",
                "hardware": {"gpu": "h100_sxm"},
                "workload": {
                    "input_tokens": 500,
                    "output_tokens": 4,
                    "max_concurrency": 1,
                    "num_requests": 3,
                },
            }
        )
        host = HostOverhead(
            base_s=0.0, per_request_s=5e-3, per_input_token_s=2e-6, per_stream_s=1e-3, source="here"
        )
        profile = load_profile("h100_sxm").with_host(host)
        result = simulate(scenario, build_service(scenario, profile))
        assert result.requests.stages_ns["tokenise"].tolist() == [6_000_000] * 3
        none = simulate(scenario, build_service(scenario, profile.with_host(replace_times(host))))
        assert none.requests.stages_ns["tokenise"].tolist() == [0] * 3


def replace_times(host: HostOverhead) -> HostOverhead:
    return host.model_copy(update={"per_request_s": 0.0, "per_input_token_s": 0.0, "per_stream_s": 0.0})


def test_the_engine_of_a_scenario_looks_ahead_where_it_schedules_asynchronously():
    raw = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100_sxm"},
        "workload": {"input_tokens": 50, "output_tokens": 200, "request_rate": 20.0, "num_requests": 60},
    }
    scenario = load_scenario(raw)
    service = build_service(scenario)
    ahead = simulate(scenario, service).requests
    in_turn = simulate(scenario, replace(service, looks_ahead=False)).requests
    step = float(np.median(in_turn.tpot_ns))
    assert float(np.median(ahead.ttft_ns - in_turn.ttft_ns)) == pytest.approx(step, rel=0.3)


def test_requests_alone_are_those_of_the_whole_run():
    scenario = load_scenario(
        {
            "model": "llama-3.1-8b",
            "hardware": {"gpu": "h100_sxm"},
            "cluster": {"replicas": 2},
            "workload": {"input_tokens": 200, "output_tokens": 30, "request_rate": 40.0, "num_requests": 80},
        }
    )
    service, load = build_service(scenario), build_load(scenario)
    whole, alone = simulate(scenario, service, load).requests, simulate_requests(scenario, service, load)
    assert all(np.array_equal(whole.columns[name], alone.columns[name]) for name in whole.columns)
