"""Plans against closed forms, and what a plan must not do: trust a short run, or wander with the seed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.studies.operating_point import STABLE, OperatingPoints, drain_rate
from sim.studies.plan import plan
from sim.studies.slo import resolve_slos
from tests.sim.doubles import constant_cost
from tests.sim.engines import run, trace_of
from tests.sim.studies.services import Cost, scenario, service

STEP_MS = 10.0
SATURATION = 1000 / STEP_MS


def one_server(given):
    """One request at a time, ten milliseconds each: M/D/1 with Poisson arrivals."""
    return service(Cost(base_ns=10_000_000), given)


def md1(**sections):
    workload = {"input_tokens": 8, "output_tokens": 1, "num_requests": 2000, **sections.pop("workload", {})}
    return scenario(engine={"max_num_seqs": 1, "max_num_batched_tokens": 8}, workload=workload, **sections)


def batching(given):
    return service(Cost(base_ns=2_000_000, per_seq_ns=200_000, per_prefill_token_ns=10_000), given)


class TestAgainstTheory:
    def test_rate_for_a_mean_wait_in_md1(self):
        # Mean time to first token D + rho D / (2 (1 - rho)) (Pollaczek-Khinchine): 1.5 D where rho = 1/2.
        found = plan(md1(), ["mean_ttft_ms=15"], build=one_server)
        assert found.max_request_rate == pytest.approx(0.5 * SATURATION, rel=0.04)
        assert found.binding_constraint == "mean_ttft_ms"
        assert found.saturation_rate == pytest.approx(SATURATION)
        assert found.stability_margin == pytest.approx(0.5, abs=0.03)

    def test_replicas_for_a_rate_that_only_stability_limits(self):
        found = plan(md1(workload={"request_rate": 310.0}), ["p99_ttft_ms=1e7"], build=one_server)
        assert found.replicas == math.ceil(310 / (STABLE * SATURATION)) == 4
        assert found.binding_constraint == "stability"
        assert found.max_request_rate == pytest.approx(STABLE * SATURATION)
        assert found.planned_stability_margin == pytest.approx(1 - 310 / 400)

    def test_replicas_behind_a_cyclic_router(self):
        # Every second of Poisson arrivals: E2/D/1 waits less than M/D/1, so that two carry more than twice of one.
        policies = {"router": "round_robin"}
        one = plan(md1(policies=policies), ["mean_ttft_ms=15"], build=one_server).max_request_rate
        two = plan(md1(policies=policies, cluster={"replicas": 2}), ["mean_ttft_ms=15"], build=one_server)
        assert 2.1 * one < two.max_request_rate < 2 * SATURATION
        assert two.saturation_rate == pytest.approx(2 * SATURATION)


class TestUnreachable:
    def test_a_limit_below_the_service_time(self):
        found = plan(md1(), ["p99_ttft_ms=9"], build=one_server)
        assert not found.slo_met
        assert found.max_request_rate == 0
        assert found.replicas is found.gpus is found.cost_per_hour is None
        assert found.binding_constraint == "p99_ttft_ms"
        assert "so light" in found.explanation
        json.dumps(found.as_json(), allow_nan=False)

    def test_more_replicas_than_a_plan_may_have(self):
        rate = 1100 * SATURATION
        found = plan(
            md1(workload={"request_rate": rate, "num_requests": 50}), ["p99_ttft_ms=1e7"], build=one_server
        )
        assert not found.slo_met
        assert found.max_request_rate > 0
        assert "not even 1024 replicas" in found.explanation


class TestOverload:
    def test_a_short_run_does_not_hide_it(self):
        # 300 requests at 1.2 times saturation: the last of them waits 0.5 s, far within the limit, but the queue grows.
        given = md1(workload={"request_rate": 1.2 * SATURATION, "num_requests": 300})
        found = plan(given, ["p99_ttft_ms=2000"], build=one_server)
        assert found.max_request_rate <= STABLE * SATURATION * 1.0001
        assert found.replicas == 2
        assert any("below saturation" in warning for warning in found.warnings)

    def test_drain_rate_leaves_out_filling_and_emptying(self):
        # Waves of eight that take 5 steps: a burst of 100 requests drains at 8 per 5 ms.
        requests, _ = run(trace_of(*[(0, 4, 5)] * 100), constant_cost(1_000_000), max_num_seqs=8)
        assert drain_rate(requests) == pytest.approx(8 / 0.005, rel=0.15)

    def test_nothing_is_run_above_saturation(self):
        given = md1(workload={"request_rate": 310.0})
        found = plan(given, ["p99_ttft_ms=1e7"], build=one_server)
        assert all(
            point.request_rate <= STABLE * point.saturation_rate for point in found.curve if point.stable
        )


LIMITS = ("p99_ttft_ms=60", "p99_tpot_ms=5")


@pytest.fixture(scope="module")
def batched():
    return plan(scenario(workload={"num_requests": 1500}), LIMITS, seed=0, build=batching)


class TestStability:
    def test_seeds_agree(self, batched):
        given = scenario(workload={"num_requests": 1500})
        other = plan(given, LIMITS, seed=1, build=batching)
        assert other.max_request_rate != batched.max_request_rate
        assert other.max_request_rate == pytest.approx(batched.max_request_rate, rel=0.04)

    def test_same_seed_same_answer(self):
        one, other = (plan(scenario(), LIMITS, build=batching).as_json() for _ in range(2))
        assert one == other

    def test_runs_are_spent_near_the_edge(self):
        found = plan(scenario(workload={"num_requests": 1500}), ["mean_e2el_ms=120"], build=batching)
        near = [
            p
            for p in found.curve
            if abs(p.request_rate / found.max_request_rate - 1) < 0.015 and p.replicas == 1
        ]
        far = [p for p in found.curve if p.stable and not 0.5 < p.metrics["mean_e2el_ms"] / 120 < 2]
        assert max(point.replications for point in near) > 2
        assert all(point.replications == 1 for point in far)

    def test_the_answer_is_a_point_that_keeps_the_limits_and_the_next_one_breaks_them(self, batched):
        here = [point for point in batched.curve if point.replicas == 1]
        best = max((p for p in here if p.met), key=lambda p: p.request_rate)
        first_broken = min((p for p in here if not p.met), key=lambda p: p.request_rate)
        assert best.request_rate == batched.max_request_rate
        assert 1 < first_broken.request_rate / best.request_rate <= 1.0101
        assert batched.binding_constraint in best.metrics
        for point in here:
            if point.stable:
                assert point.met == (point.metrics["p99_ttft_ms"] <= 60 and point.metrics["p99_tpot_ms"] <= 5)

    def test_a_run_holds_many_times_what_is_in_the_system(self):
        # Forty requests would all be in flight together at the rates that the limit allows.
        found = plan(
            scenario(engine={"max_num_seqs": 64}, workload={"num_requests": 40}),
            ["p99_e2el_ms=1000"],
            replications=2,
            build=batching,
        )
        assert max(point.num_requests for point in found.curve) > 200
        assert found.num_requests == 40


class TestSize:
    def test_cost_counts_the_gpus_of_every_replica(self):
        given = md1(
            workload={"request_rate": 150.0},
            hardware={"tensor_parallel_size": 4},
            cluster={"price_per_gpu_hour": 2.5},
        )
        found = plan(given, ["p99_ttft_ms=1e7"], build=one_server)
        assert (found.replicas, found.gpus, found.cost_per_hour) == (2, 8, 20.0)

    def test_scarce_kv_blocks_are_named(self):
        def small(given):
            return service(Cost(base_ns=2_000_000), given, usable_blocks=30)

        given = scenario(engine={"max_num_seqs": 64, "max_num_batched_tokens": 2048, "block_size": 16})
        found = plan(given, ["mean_ttft_ms=20"], build=small)
        assert found.binding_constraint == "mean_ttft_ms through kv_cache"
        assert "KV blocks" in found.explanation
        plenty = plan(given, ["mean_ttft_ms=20"], build=lambda given: service(Cost(base_ns=2_000_000), given))
        assert plenty.max_request_rate > 1.5 * found.max_request_rate


class TestTraceFile:
    @pytest.fixture
    def trace(self, tmp_path):
        rng = np.random.default_rng(5)
        times = np.cumsum(rng.exponential(20.0, 400)).round().astype(int)
        path = tmp_path / "trace.jsonl"
        lines = [{"timestamp": int(t), "input_length": 8, "output_length": 1, "hash_ids": [0]} for t in times]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path, 400 / (times[-1] - times[0]) * 1000

    def test_its_own_rate_is_the_one_to_carry(self, trace):
        path, rate = trace
        given = {**md1(), "workload": {"trace": str(path)}}
        found = plan(given, ["p99_ttft_ms=100"], build=one_server)
        assert found.request_rate == pytest.approx(rate, rel=0.02)
        assert found.replicas == 1
        assert found.max_request_rate > rate
        assert found.replications == 1
        assert any("no randomness" in warning for warning in found.warnings)
        assert {point.num_requests for point in found.curve if point.stable} == {400}


class TestWarnings:
    def test_few_requests_for_a_p99(self):
        found = plan(
            md1(workload={"num_requests": 200}), ["p99_ttft_ms=30"], replications=2, build=one_server
        )
        assert any("few for p99_ttft_ms" in warning for warning in found.warnings)

    def test_enough_requests(self):
        found = plan(md1(), ["p99_ttft_ms=30"], replications=2, build=one_server)
        assert not any("few for" in warning for warning in found.warnings)

    def test_a_wide_range_that_the_runs_do_not_settle(self):
        given = md1(workload={"num_requests": 300, "burstiness": 0.1})
        found = plan(given, ["p99_ttft_ms=150"], replications=2, build=one_server)
        unsure = [point.request_rate for point in found.curve if not point.sure and point.replicas == 1]
        assert max(unsure) > 1.05 * min(unsure)
        ends = f"from {min(unsure):.4g} to {max(unsure):.4g} requests/s"
        assert any(warning.startswith(ends) for warning in found.warnings)


class TestRefused:
    """Inputs are uniform from 20 to 200 tokens and outputs from 4 to 30, so that few are longer than 220 in all."""

    def test_more_than_the_percentile_forgives_is_not_met(self):
        found = plan(scenario(engine={"max_model_len": 100}), ["p99_ttft_ms=1e6"], build=batching)
        assert not found.slo_met
        assert found.max_request_rate == 0
        assert found.replicas is None
        assert found.binding_constraint == "refused requests through max_model_len"
        assert "raise engine.max_model_len" in found.explanation
        assert [point.met for point in found.curve] == [False]
        json.dumps(found.as_json(), allow_nan=False)

    @pytest.mark.parametrize(
        ("slo", "met"),
        [("p99_ttft_ms", False), ("mean_ttft_ms", False), ("p90_ttft_ms", True), ("median_ttft_ms", True)],
    )
    def test_a_p90_forgives_what_a_p99_does_not(self, slo, met):
        given = scenario(engine={"max_model_len": 203}, workload={"num_requests": 1000})
        found = plan(given, [f"{slo}=1e6"], replications=2, build=batching)
        assert found.slo_met == met
        if met:
            assert any("refused by the engine" in warning for warning in found.warnings)

    def test_no_percentile_forgives_more_than_a_tenth(self):
        found = plan(scenario(engine={"max_model_len": 180}), ["median_ttft_ms=1e6"], build=batching)
        assert not found.slo_met
        assert "10% that median_ttft_ms forgives" in found.explanation

    @pytest.mark.parametrize(
        ("sections", "usable_blocks", "name"),
        [
            (
                {"policies": {"batcher": "continuous"}, "engine": {"max_num_batched_tokens": 100}},
                1000,
                "batched",
            ),
            ({}, 8, "kv_cache"),
        ],
    )
    def test_the_limit_that_refuses_is_named(self, sections, usable_blocks, name):
        def build(given):
            return service(Cost(base_ns=2_000_000), given, usable_blocks=usable_blocks)

        found = plan(scenario(**sections), ["p99_ttft_ms=1e6"], build=build)
        assert name in found.binding_constraint
        assert "raise" in found.explanation


class TestMistakes:
    @pytest.mark.parametrize(
        ("slo", "message"),
        [
            ("p99_ttft_ms", "write METRIC=MS"),
            ("p99_itl_ms=5", "write METRIC=MS"),
            ("p100_ttft_ms=5", "write METRIC=MS"),
            ("p99_ttft_ms=fast", "not a number of milliseconds"),
            ("p99_ttft_ms=0", "above 0"),
            ("p99_ttft_ms=nan", "above 0"),
            ("p99_ttft_ms=inf", "above 0"),
        ],
    )
    def test_limits(self, slo, message):
        with pytest.raises(ConfigError, match=r"^--slo") as error:
            plan(md1(), [slo], build=one_server)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("workload", "message"),
        [
            ({"max_concurrency": 4, "request_rate": None}, "closed loop"),
            ({"request_rate": "inf"}, "no rate to plan for"),
            (
                {
                    "request_rate": None,
                    "ramp_up_strategy": "linear",
                    "ramp_up_start_rps": 1.0,
                    "ramp_up_end_rps": 2.0,
                },
                "for one rate",
            ),
        ],
    )
    def test_loads(self, workload, message):
        with pytest.raises(ConfigError, match=message):
            plan(md1(workload=workload), ["p99_ttft_ms=30"], build=one_server)

    def test_none_given(self):
        with pytest.raises(ConfigError, match="the scenario has no slo"):
            plan(md1(), build=one_server)

    def test_given_twice(self):
        with pytest.raises(ConfigError, match="given twice"):
            plan(md1(), ["p99_ttft_ms=1", "p99_ttft_ms=2"], build=one_server)

    def test_a_latency_that_no_request_has(self):
        with pytest.raises(ConfigError, match="no request has such a latency"):
            plan(md1(), ["p99_tpot_ms=10"], build=one_server)

    def test_an_engine_that_refuses_everything(self):
        with pytest.raises(ConfigError, match="refuses every request"):
            plan(md1(), ["p99_ttft_ms=30"], overrides=["engine.max_model_len=5"], build=one_server)

    def test_no_replications(self):
        with pytest.raises(ConfigError, match="at least 1"):
            plan(md1(), ["p99_ttft_ms=30"], replications=0, build=one_server)


def test_limits_of_the_scenario_are_for_the_p99():
    found = plan(md1(slo={"ttft_ms": 30.0}), replications=2, build=one_server)
    assert found.slo == {"p99_ttft_ms": 30.0}


def test_json_has_what_scripts_rely_on():
    found = plan(md1(), ["p99_ttft_ms=30"], replications=2, build=one_server)
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    keys = {"replicas", "gpus", "cost_per_hour", "max_request_rate", "slo_met", "binding_constraint", "curve"}
    assert keys <= document.keys()
    point = document["curve"][0]
    assert {"request_rate", "replicas", "metrics", "met", "replications"} <= point.keys()
    order = [(p["replicas"], p["request_rate"]) for p in document["curve"]]
    assert order == sorted(order)


def test_a_point_is_evaluated_once():
    from sim.scenario.reading import load_scenario

    loaded = load_scenario(md1())
    ran = []
    slos = resolve_slos(["p99_ttft_ms=1e6"], loaded.slo)
    points = OperatingPoints(loaded, one_server(loaded), slos, on_run=ran.append)
    assert points.at(20.0, 1) is points.at(20.0, 1)
    assert len([label for label in ran if label.startswith("20 ")]) == 1
