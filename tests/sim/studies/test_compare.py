"""Comparisons of doubles whose difference is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.scenario.vllm_flags import parse_vllm_command
from sim.studies.compare import compare
from sim.studies.flags import engine_flags
from sim.studies.observations import METRICS
from sim.studies.pairs import change, quantity
from tests.sim.studies.services import Cost, scenario, service

# Steps take 2 ms and 0.2 ms a sequence; eager ones, a millisecond more.
SLO = {"ttft_ms": 40.0, "tpot_ms": 4.0}


def build(given):
    base_ns = 3_000_000 if given.engine.enforce_eager else 2_000_000
    return service(Cost(base_ns=base_ns, per_seq_ns=200_000, per_prefill_token_ns=10_000), given)


def run(vary, replications=3, *, metric=None, seed=None, **sections):
    sections.setdefault("slo", SLO)
    return compare(
        scenario(**sections),
        vary,
        replications=replications,
        metric=metric,
        seed=seed,
        build=build,
        draws=200,
    )


EAGER = ["engine.enforce_eager=false,true"]


class TestAnswer:
    def test_a_slower_engine_loses(self):
        found = run(EAGER)
        assert found.winner == "enforce_eager=false"
        assert found.metric == "request_goodput"
        gaps = {gap.metric: gap for gap in found.differences}
        assert 0 < gaps["mean_tpot_ms"].ci_low < gaps["mean_tpot_ms"].delta < gaps["mean_tpot_ms"].ci_high
        assert gaps["mean_tpot_ms"].delta == pytest.approx(1.0, rel=0.35)
        assert gaps["request_goodput"].ci_high < 0
        assert found.verdict.startswith(
            "enforce_eager=false is better than enforce_eager=true: request_goodput"
        )

    def test_order_of_the_arms_only_turns_the_sign(self):
        one, other = run(EAGER), run(["engine.enforce_eager=true,false"])
        assert other.winner == one.winner
        for gap, turned in zip(one.differences, other.differences, strict=True):
            assert turned.delta == pytest.approx(-gap.delta, abs=1e-9)
            assert turned.ci_low == pytest.approx(-gap.ci_high, abs=1e-9)

    def test_what_changes_nothing_is_said_to_change_nothing(self):
        found = run(["engine.gpu_memory_utilization=0.8,0.9"])
        assert found.winner is None
        assert found.engine_flags is None
        assert found.verdict.startswith("no difference shown")
        assert {(gap.delta, gap.ci_low, gap.ci_high) for gap in found.differences} == {(0.0, 0.0, 0.0)}

    def test_the_last_request_alone_shows_nothing(self):
        # All requests are good in both arms; only the time after the last arrival differs, by a few milliseconds.
        found = run(EAGER, 1, slo={"ttft_ms": 1e6})
        gap = next(gap for gap in found.differences if gap.metric == "request_goodput")
        assert gap.delta != 0
        assert gap.ci_low < 0 < gap.ci_high
        assert found.winner is None

    def test_arms_see_the_same_requests(self):
        found = run(["policies.batcher=chunked,continuous,static_batch"])
        first, *others = (result.requests.columns for result in found.runs)
        for other in others:
            for name in ("arrival_ns", "input_tokens", "output_tokens"):
                assert np.array_equal(first[name], other[name])
        assert not np.array_equal(first["last_token_ns"], others[1]["last_token_ns"])

    @pytest.mark.parametrize("metric", METRICS)
    def test_every_metric_can_decide_and_knows_its_direction(self, metric):
        found = run(EAGER, 2, metric=metric, workload={"request_rate": 300.0}, slo={"ttft_ms": 1500.0})
        assert found.winner == "enforce_eager=false"

    def test_the_price_of_the_winner_is_named(self):
        # Sixteen at a time share each step; one at a time is quicker per token, and waits.
        found = run(["engine.max_num_seqs=1,16"], metric="mean_ttft_ms")
        assert found.winner == "max_num_seqs=16"
        assert "It pays with" in found.verdict
        assert "tpot_ms" in found.verdict

    def test_best_of_three_must_beat_both_others(self):
        found = run(["engine.gpu_memory_utilization=0.8,0.9", *EAGER])
        assert found.winner is None  # two equal ones are ahead
        assert "the same request_goodput" in found.verdict

    def test_default_metric_without_an_slo(self):
        found = run(EAGER, slo={"ttft_ms": None})
        assert found.metric == "mean_e2el_ms"
        assert "request_goodput" not in found.arms[0].metrics

    def test_a_great_factor_is_no_percentage(self):
        found = run(
            ["engine.max_num_seqs=1,16"],
            1,
            workload={"request_rate": 25.0},
            slo={"ttft_ms": 60.0, "tpot_ms": 1e6},
        )
        gap = next(gap for gap in found.differences if gap.metric == "request_goodput")
        assert gap.relative > 9
        assert f"{quantity(1 + gap.relative)} times as much (95% interval: " in found.verdict
        assert "% more" not in found.verdict


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        (0.1234, "+12.3%"),
        (-0.5, "-50.0%"),
        (-0.0001, "0.0%"),
        (8.5, "+850.0%"),
        (2059.0, "2,060x"),
        (-0.999, "1/1,000"),
        (-1.0, "-100.0%"),
    ],
)
def test_relative_differences_as_people_read_them(relative, text):
    assert change(relative) == text


class TestReplications:
    def test_same_seed_same_answer_other_seed_another(self):
        one, again, other = run(EAGER), run(EAGER), run(EAGER, seed=4)
        assert one.as_json() == again.as_json()
        assert one.as_json() != other.as_json()

    def test_the_first_has_the_seed_of_the_scenario_and_more_leave_it_as_it_was(self):
        one, three = run(EAGER, 1), run(EAGER, 3)
        assert one.seeds == three.seeds[:1] == (3,)
        assert len(set(three.seeds)) == 3
        for a, b in zip(one.runs, three.runs, strict=True):
            assert np.array_equal(a.requests.columns["last_token_ns"], b.requests.columns["last_token_ns"])

    def test_metrics_are_means_over_replications(self):
        three = run(EAGER, 3, workload={"request_rate": "inf"})  # no warm-up to remove
        singles = [run(EAGER, 1, seed=seed, workload={"request_rate": "inf"}) for seed in three.seeds]
        for name, value in three.arms[0].metrics.items():
            assert value == pytest.approx(np.mean([single.arms[0].metrics[name] for single in singles])), name

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_a_workload_without_randomness_runs_once(self, replicas):
        fixed = {"input_tokens": 50, "output_tokens": 8, "burstiness": "inf"}
        found = run(EAGER, workload=fixed, cluster={"replicas": replicas})
        assert found.seeds == (3,)
        assert any("no randomness" in warning for warning in found.warnings)

    def test_a_service_is_built_once_an_arm(self):
        built = []
        compare(
            scenario(),
            EAGER,
            replications=3,
            draws=9,
            build=lambda given: built.append(given) or build(given),
        )
        assert len(built) == 2

    def test_each_run_is_reported(self):
        seen = []
        compare(
            scenario(), EAGER, replications=3, draws=9, build=build, on_run=lambda *what: seen.append(what)
        )
        assert seen == [("enforce_eager=false", 6), ("enforce_eager=true", 6)] * 3


class TestWarmup:
    def test_all_arms_lose_the_same_requests(self):
        found = run(EAGER, workload={"request_rate": 60.0})
        assert found.warmup.rule.startswith("MSER-5")
        assert found.warmup.removed == max(found.warmup.by_arm.values())
        assert found.warmup.removed <= found.warmup.requests / 2

    def test_metrics_are_of_the_requests_after_it(self):
        found = run(EAGER, 1, workload={"request_rate": 300.0})
        requests, removed = found.runs[0].requests, found.warmup.removed
        assert removed > 0
        assert found.arms[0].metrics["mean_ttft_ms"] == pytest.approx(requests.ttft_ns[removed:].mean() / 1e6)
        p99 = np.percentile(requests.e2el_ns[removed:], 99) / 1e6
        assert found.arms[0].metrics["p99_e2el_ms"] == pytest.approx(p99)

    def test_overload_is_named(self):
        found = run(EAGER, workload={"request_rate": 1000.0})
        assert any("no steady state" in warning for warning in found.warnings)

    def test_a_load_without_steady_state_is_kept_whole(self):
        found = run(EAGER, workload={"request_rate": "inf"})
        assert found.warmup.removed == 0
        assert found.warmup.rule.startswith("none")


class TestRefused:
    def test_they_are_counted_and_said_and_not_good(self):
        found = run(["engine.max_model_len=100,1000"], slo={"ttft_ms": 1e6})
        short, full = found.arms
        assert short.completed < full.completed == full.requests
        assert any(f"max_model_len=100 {short.requests - short.completed}" in text for text in found.warnings)
        assert short.metrics["request_goodput"] < full.metrics["request_goodput"]

    def test_an_arm_that_refuses_everything_cannot_win_by_latency(self):
        found = run(["engine.max_model_len=10,1000"], metric="mean_ttft_ms")
        assert found.winner is None
        assert found.arms[0].metrics["mean_ttft_ms"] is None
        assert next(gap for gap in found.differences if gap.metric == "mean_ttft_ms").delta is None
        json.dumps(found.as_json(), allow_nan=False)

    def test_an_arm_that_refuses_the_long_ones_cannot_win_by_latency(self):
        found = run(["engine.max_model_len=100,1000"], metric="mean_e2el_ms")
        assert found.arms[0].metrics["mean_e2el_ms"] < found.arms[1].metrics["mean_e2el_ms"]
        assert found.winner is None
        assert found.engine_flags is None
        assert found.verdict.startswith("no verdict: max_model_len=100 refuses ")

    def test_a_few_refused_requests_spoil_no_verdict(self):
        found = run(["engine.max_model_len=222,1000", *EAGER], metric="mean_tpot_ms")
        assert 0 < found.arms[0].requests - found.arms[0].completed < 0.01 * found.arms[0].requests
        assert not found.verdict.startswith("no verdict")

    def test_but_it_loses_by_goodput(self):
        found = run(["engine.max_model_len=10,1000"])
        assert found.winner == "max_model_len=1000"


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"metric": "p98_ttft_ms"}, "no such metric"),
            ({"metric": "request_goodput", "slo": {"ttft_ms": None}}, "needs limits"),
            ({"replications": 0}, "at least 1"),
        ],
    )
    def test_one_line(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            run(EAGER, **arguments)


def test_json_has_what_scripts_rely_on():
    document = json.loads(json.dumps(run(EAGER).as_json(), allow_nan=False))
    assert {
        "arms",
        "differences",
        "winner",
        "verdict",
        "replications",
        "warmup",
        "metric",
        "seeds",
    } <= document.keys()
    assert document["arms"][0]["set"] == {"engine.enforce_eager": False}
    assert document["arms"][0]["name"] == "enforce_eager=false"
    assert set(document["arms"][0]["metrics"]) == set(METRICS)
    keys = {"arm", "metric", "delta", "relative", "ci_low", "ci_high"}
    assert all(difference.keys() == keys for difference in document["differences"])
    assert {difference["arm"] for difference in document["differences"]} == {"enforce_eager=true"}


class TestFlags:
    def test_they_give_back_the_engine(self):
        found = run(["engine.max_num_seqs=12,1"], engine={"enforce_eager": True, "block_size": 32})
        assert found.winner == "max_num_seqs=12"
        fields = parse_vllm_command(f"vllm serve llama-3.1-8b {found.engine_flags}").fields
        assert fields["engine.max_num_seqs"] == 12
        assert fields["engine.max_num_batched_tokens"] == 256
        assert fields["engine.block_size"] == 32
        assert fields["engine.enforce_eager"] is True

    @pytest.mark.parametrize(
        ("batcher", "flag", "note"),
        [
            ("chunked", None, None),
            ("continuous", "--no-enable-chunked-prefill", None),
            ("dynamic_chunked", None, "dynamic_chunked: the engine has no such policy"),
            ("static_batch", None, "static_batch: the engine has no such policy"),
            ({"name": "chunked", "chunk_tokens": 64}, None, "chunk_tokens 64"),
        ],
    )
    def test_what_the_engine_does_not_have_is_said(self, batcher, flag, note):
        found = run(EAGER, policies={"batcher": batcher})
        assert ("--no-enable-chunked-prefill" in found.engine_flags) == (flag is not None)
        assert any(text.startswith(note) for text in found.engine_notes) if note else not found.engine_notes

    def test_what_varied_is_said_even_at_its_default(self):
        found = run(EAGER)
        assert "--no-enforce-eager" in found.engine_flags
        assert "--enforce-eager" not in engine_flags(found.runs[0].scenario).flags


SESSIONS = {
    "input_tokens": 60,
    "output_tokens": 20,
    "request_rate": 20,
    "num_requests": 60,
    "sessions": {"turns": 5, "turn_gap_s": 0.5, "system_prompt_tokens": 40},
}


@pytest.mark.parametrize(
    "policy",
    [
        "{name: sliding_window, window_turns: 1}",
        "{name: summary, summarise_every: 2, summary_request: false}",
    ],
)
def test_context_policies_are_compared_turn_by_turn(policy):
    raw = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100_sxm"}, "workload": SESSIONS}
    found = compare(raw, [f"workload.sessions.context_policy=full,{policy}"], replications=2)
    full, other = (run.requests.columns for run in found.runs)
    assert other["output_tokens"].tolist() == full["output_tokens"].tolist()
    assert (other["input_tokens"] <= full["input_tokens"]).all()
    assert other["input_tokens"].sum() < full["input_tokens"].sum()
    assert found.winner == found.arms[1].name  # prompts are shorter
    assert any("application" in note for note in found.engine_notes)


def test_requests_for_summaries_have_no_pairs():
    raw = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100_sxm"}, "workload": SESSIONS}
    with pytest.raises(ConfigError, match="summary_request: false"):
        compare(raw, ["workload.sessions.context_policy=full,{name: summary, summarise_every: 2}"])
