"""Confirmations: the fit against known prices, the verdict against known outcomes, and one whole run on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.confirmation.confirm import _compare as compare_arms
from calibration.confirmation.confirm import confirm
from calibration.confirmation.cost import KNOTS, NAMES, StepFit, StepTable, fit_steps, free
from calibration.confirmation.files import write_confirmation
from calibration.confirmation.service import device_profile
from calibration.confirmation.shipped import SHIPPED
from calibration.confirmation.text import markdown_table, outcome_lines, verdict
from calibration.gpu_check import Stages
from calibration.kernel_check import check_kernels
from calibration.step_log import read_step_log
from calibration.validate_steps import compare_steps
from dashboards.confirmation_page import render
from hwbackend.device import open_device
from hwbackend.engine.server import check_scenario
from hwbackend.engine.step_records import StepRecord
from sim.cli import run_command
from sim.errors import ConfigError
from sim.profile import load_profile
from sim.scenario.reading import load_scenario
from sim.simulation import simulate
from sim.studies.arms import build_arms

TINY = {
    "model": str(SHIPPED["chunking"].scenario("cpu").parent / "tiny_llama" / "config.json"),
    "hardware": {"profile": "profile.json"},
    "engine": {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 128,
        "max_model_len": 256,
        "num_gpu_blocks_override": 61,
    },
    "workload": {
        "input_tokens": {"uniform": [16, 90]},
        "output_tokens": {"uniform": [3, 9]},
        "max_concurrency": 3,
        "num_requests": 10,
    },
}
CHUNKS = "policies.batcher={name: chunked, chunk_tokens: 4},chunked"


@pytest.fixture(scope="module")
def cpu():
    device = open_device("cpu")
    yield device
    device.close()


@pytest.fixture(scope="module")
def outcome(cpu):
    return confirm(TINY, [CHUNKS], cpu, repetitions=2, budget_s=8)


def priced(**seconds):
    return StepFit({**dict.fromkeys(NAMES[1:], 0.0), **seconds}, (1e-3, 2e-3), 1.0, 0, 0.0, 0.0, {})


PRICES = priced(
    per_seq=1e-4,
    per_token_above_0=2e-5,
    per_token_above_64=3e-5,
    per_context=3e-7,
    per_chunk=4e-4,
    per_pair=5e-8,
)


def random_records(rng, count, group, prices=PRICES, noise=0.0):
    cost = prices.cost(group)
    records = []
    for _ in range(count):
        decoding = int(rng.integers(0, 7))
        contexts = tuple(rng.integers(1, 900, decoding).tolist())
        prompts = int(rng.integers(0 if decoding else 1, 3))
        chunks = tuple((90 + i, int(rng.integers(0, 600)), int(rng.integers(1, 500))) for i in range(prompts))
        price = cost.mixed_ns(decoding, sum(contexts), 0, [(new, before) for _, before, new in chunks])
        price = round(price * (1 + noise * float(rng.exponential())))
        records.append(
            StepRecord(
                0, price, chunks, tuple(range(decoding)), contexts, (), 0, 0, 0, read_tokens=sum(contexts)
            )
        )
    return records


def test_a_fit_finds_the_prices_that_made_the_steps():
    rng = np.random.default_rng(1)
    table = StepTable.of([(group, random_records(rng, 300, group)) for group in (0, 1)])
    fit = fit_steps(table, 2)
    assert fit.p90_error < 1e-3
    assert fit.hold_up == pytest.approx(1, abs=1e-3)
    assert fit.bases == pytest.approx(PRICES.bases, rel=0.02)
    for name, value in PRICES.seconds.items():
        assert fit.seconds[name] == pytest.approx(value, rel=0.05, abs=2e-8), name


def test_a_fit_takes_as_long_as_the_steps_together_whatever_held_them_up():
    rng = np.random.default_rng(2)
    table = StepTable.of([(group, random_records(rng, 400, group, noise=0.3)) for group in (0, 1)])
    fit = fit_steps(table, 2)
    assert fit.predict(table).sum() == pytest.approx(table.seconds.sum())
    assert fit.hold_up > 1


def test_waits_for_transfers_are_not_the_steps_own_time():
    record = StepRecord(0, 10_000_000, ((1, 0, 5),), (), (), (), 0, 0, 0, waited_ns=4_000_000)
    look = StepRecord(0, 0, (), (), (), (), 0, 0, 0)
    assert StepTable.of([(0, [record, look])]).seconds.tolist() == [6e-3]


def test_few_steps_are_no_calibration():
    with pytest.raises(ConfigError, match="budget"):
        fit_steps(StepTable.of([(0, random_records(np.random.default_rng(3), 20, 0))]), 1)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 5000), st.integers(1, 400), st.floats(0.2, 3))
def test_a_window_of_decodes_is_its_steps_bit_for_bit(decodes, context, steps, pace):
    cost = PRICES.cost(1, pace)
    window = cost.decode_window_ns(decodes, context, 0, 0, steps)
    single = [cost.decode_ns(decodes, context + decodes * j, 0) for j in range(steps)]
    assert window.tolist() == single
    assert cost.mixed_ns(decodes, context, 0, ()) == single[0]


@settings(deadline=None)
@given(st.integers(0, 8), st.integers(1, 600), st.integers(0, 600))
def test_parts_add_up_to_the_price(decodes, new, computed):
    cost = PRICES.cost(0)
    parts = cost.parts(decodes, decodes * 50, 0, [(new, computed)])
    assert parts.total_s * 1e9 == pytest.approx(
        cost.mixed_ns(decodes, decodes * 50, 0, [(new, computed)]), abs=1
    )


def test_more_than_was_calibrated_is_said():
    fit = replace(PRICES, ranges={"decodes": (0, 4), "tokens": (1, 100), "context_tokens": (0, 999)})
    cost = fit.cost(0)
    cost.mixed_ns(3, 500, 0, [(60, 0)])
    assert not cost.extrapolated
    cost.mixed_ns(3, 500, 0, [(300, 0)])
    assert list(cost.extrapolated) == ["tokens"]
    assert KNOTS[0] == 0
    assert free().decode_ns(1, 1, 0) == 1


# The verdict.


def arms_with(outcome, factors, noise=0.0):
    """The outcome's arms, their measured values scaled by arm, and the simulated ones left."""
    arms = []
    for arm, factor in zip(outcome.arms, factors, strict=True):
        repetitions = [
            {name: value * factor * (1 + noise * (-1) ** i) for name, value in arm.simulated.items()}
            for i in range(4)
        ]
        arms.append(
            replace(
                arm, repetitions=repetitions, simulations=[dict(arm.simulated)] * 4, at_one_pace=arm.simulated
            )
        )
    return arms


def test_orderings_hold_or_not(outcome):
    base, arm = arms_with(outcome, (1.0, 1.0))
    same = compare_arms(arm, base, "mean_e2el_ms")
    assert same.judged
    assert same.ordering_held
    assert same.gain_held
    assert same.gain_measured == pytest.approx(same.gain_simulated)
    wrong = compare_arms(
        *reversed(arms_with(outcome, (1.0, 100.0 if same.gain_simulated > 0 else 0.01))), "mean_e2el_ms"
    )
    assert wrong.judged
    assert not wrong.ordering_held
    assert not wrong.gain_held


def test_what_is_within_the_noise_is_not_judged(outcome):
    base, arm = arms_with(outcome, (1.0, 1.0))
    for one, sign in ((arm, 1), (base, -1)):
        for i, repetition in enumerate(one.repetitions):
            for name in repetition:
                repetition[name] *= 1 + 0.9 * sign * (-1) ** i
    noisy = compare_arms(arm, base, "mean_e2el_ms")
    assert noisy.noise is not None
    assert not noisy.judged
    no_gain = replace(outcome, comparisons=[noisy])
    assert no_gain.ordering_held is None
    assert no_gain.gain_held is None
    assert not no_gain.refuted
    assert "nothing to confirm" in verdict(no_gain)


def test_a_rate_is_better_when_it_is_higher(outcome):
    base, arm = arms_with(outcome, (1.0, 2.0))
    by_rate = compare_arms(arm, base, "output_throughput")
    by_latency = compare_arms(arm, base, "mean_ttft_ms")
    assert by_rate.gain_measured > by_rate.gain_simulated
    assert by_latency.gain_measured < by_latency.gain_simulated


# One whole run.


def test_a_confirmation_on_the_cpu(outcome, tmp_path):
    document = outcome.as_json()
    assert document["device"]["kind"] == "cpu"
    assert [set(arm) >= {"name", "simulated", "measured", "error"} for arm in document["arms"]] == [
        True,
        True,
    ]
    assert {"ordering_held", "gain_simulated", "gain_measured"} <= set(document)
    for arm in outcome.arms:
        assert arm.replayed_steps >= arm.steps > 0
        assert arm.error["mean_e2el_ms"] == pytest.approx(
            arm.simulated["mean_e2el_ms"] / arm.measured["mean_e2el_ms"] - 1
        )
        assert len(arm.repetitions) == len(arm.simulations) == len(arm.others_share)
    assert outcome.leading.gain_simulated > 0  # chunks of four tokens cost more
    write_confirmation(outcome, outcome.load.trace, tmp_path)
    saved = json.loads((tmp_path / "confirmation.json").read_text())
    assert saved == json.loads(json.dumps(document))
    for one in outcome.runs:
        folder = tmp_path / "arms" / f"{one.arm.directory}.measured"
        assert json.loads((folder / "summary.json").read_text())["backend"] == "servetwin-engine"
        steps = read_step_log(folder)
        assert len(steps.steps) == sum(record.computes for record in one.served.records)
    default = next(one for one in outcome.runs if one.arm.name == "chunked")
    assert compare_steps(read_step_log(tmp_path / "arms" / f"{default.arm.directory}.measured")).exact
    page = render(tmp_path).read_text(encoding="utf-8")
    assert "Gains" in page
    assert outcome.arms[0].name in page
    assert outcome.arms[0].name in outcome_lines(outcome)
    assert len(markdown_table([("tiny", outcome)]).splitlines()) == 4


def test_the_simulated_side_has_the_engines_memory_and_limits(outcome):
    for simulated, one in zip(outcome.simulated, outcome.runs, strict=True):
        for result in simulated:
            assert result.summary["sim"]["num_gpu_blocks"] == 61
            measured = one.results[0]
            assert measured.service.limits == result.service.limits
            assert measured.service.capacity == result.service.capacity
            ours, theirs = result.requests.columns, measured.requests.columns
            assert (ours["input_tokens"] == theirs["input_tokens"]).all()
            assert (ours["output_tokens"] == theirs["output_tokens"]).all()


def test_calibration_loads_are_not_the_confirmations(cpu):
    from calibration.confirmation.runs import Confirmation, Load

    runs = Confirmation(build_arms(TINY, [CHUNKS]), cpu, device_profile(cpu), lambda _message: None)
    trace = runs._random(Load(2)).trace
    assert trace.input_tokens.max() <= runs.load.trace.input_tokens.max()
    assert not np.array_equal(trace.input_tokens[:10], runs.load.trace.input_tokens)
    assert (
        runs._random(Load(2, short=True)).trace.input_tokens.max() <= runs.load.trace.input_tokens.max() // 8
    )


def test_a_profile_prices_the_steps_in_place_of_calibration(cpu, monkeypatch):
    from calibration.confirmation import runs as confirmation_runs

    listed = load_profile("h200_sxm")
    monkeypatch.setattr(confirmation_runs, "listed_cost", lambda *_parts: PRICES.cost(0))
    outcome = confirm(TINY, [CHUNKS], cpu, repetitions=1, listed=listed)
    assert outcome.as_json()["calibration"]["profile"] == listed.name
    for one, arm in zip(outcome.runs, outcome.arms, strict=True):
        service = replace(one.results[0].service, cost=PRICES.cost(0))
        alone = simulate(one.arm.scenario, service, outcome.load).summary
        assert arm.simulated["mean_e2el_ms"] == alone["mean_e2el_ms"]


def test_a_profile_of_another_kind_of_device_is_refused(cpu):
    with pytest.raises(ConfigError, match="curve for float32"):
        confirm(TINY, [CHUNKS], cpu, repetitions=1, listed=load_profile("h200_sxm"))


# What comes with the package, and what is refused.


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_confirmations_are_sound(name, kind):
    from hwbackend.engine.weights import check_runs
    from sim.model import load_model

    shipped = SHIPPED[name]
    arms = build_arms(shipped.scenario(kind), [shipped.vary[kind]])
    assert len(arms) >= 2
    for arm in arms:
        check_scenario(arm.scenario)
        check_runs(load_model(arm.scenario.model))


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("cluster.replicas=2", "cluster.replicas"),
        ("hardware.tensor_parallel_size=2", "tensor_parallel_size"),
        ("hardware.weight_dtype=fp8", "weight_dtype"),
        ("engine.kv_cache_dtype=fp8", "kv_cache_dtype"),
        ("policies.batcher={name: static_batch, padding: true}", "padding"),
        ("kv_compression.sliding_window=64", "kv_compression"),
        ("links.background=[{route: load, gb_per_s: 1, duration_s: 1}]", "links.background"),
    ],
)
def test_what_no_device_runs_is_refused_by_name(override, field):
    with pytest.raises(ConfigError, match=field):
        check_scenario(load_scenario(TINY, [override]))


def test_the_number_of_blocks_must_be_given(cpu):
    engine = {**TINY["engine"], "num_gpu_blocks_override": None}
    with pytest.raises(ConfigError, match="num_gpu_blocks_override"):
        confirm({**TINY, "engine": engine}, [CHUNKS], cpu)


def test_kernels_of_the_cpu_are_right(cpu):
    verdicts = list(check_kernels(cpu))
    assert len({verdict.operation for verdict in verdicts}) == 10
    assert all(verdict.passed for verdict in verdicts)


def test_a_wrong_kernel_is_found(cpu, monkeypatch):
    right = type(cpu.ops).decode_attention

    def wrong(self, q, *rest, **options):
        out = right(self, q, *rest, **options)
        out[-1, 0, 0] = np.nan
        return out

    monkeypatch.setattr(type(cpu.ops), "decode_attention", wrong)
    failed = {verdict.operation for verdict in check_kernels(cpu) if not verdict.passed}
    assert failed == {"decode_attention"}


def test_bad_options_are_one_line(capsys):
    for arguments, words in (
        (["confirm", "nothing.yaml", "--vary", "a=1,2", "--device", "cpu"], "no such file"),
        (["confirm", "chunking", "--device", "tpu"], "--device tpu"),
        (["confirm", "chunking", "--budget", "0"], "--budget 0"),
        (["confirm", "chunking", "--metric", "luck", "--device", "cpu"], "--metric luck"),
        (["confirm", "chunking", "--report"], "--report"),
        (["gpu-check", "--out", "/proc/x/y", "--budget", "0.5"], "--budget 0.5"),
    ):
        assert run_command(arguments) == 2, arguments
        error = capsys.readouterr().err.strip().splitlines()
        assert words in error[-1], arguments


def test_gpu_check_reports_what_failed_and_goes_on(cpu, tmp_path, monkeypatch):
    stages = Stages(cpu, tmp_path, 1000.0)
    monkeypatch.setattr(stages, "_kernels", lambda: 1 / 0)
    for name in ("_speed", "_calibration"):
        monkeypatch.setattr(stages, name, lambda: (True, "fine", {}))
    monkeypatch.setattr(stages, "_confirm", lambda name: (True, name, {}))
    report = stages.run()
    assert not report["passed"]
    assert "division" in report["stages"]["kernels"]["said"]
    assert report["stages"]["confirm-prefetch"]["passed"]
    assert json.loads((tmp_path / "gpu-check.json").read_text()) == report


def test_gpu_check_ends_with_its_budget(cpu, tmp_path, monkeypatch):
    now = 100.0
    stages = Stages(cpu, tmp_path, 20.0, clock=lambda: now)

    def stage(passed, seconds):
        def run(*_name):
            nonlocal now
            now += seconds
            return passed, f"took {seconds}", {}

        return run

    for name, seconds in (("_kernels", 2.0), ("_speed", 3.0), ("_confirm", 15.0), ("_calibration", 1.0)):
        monkeypatch.setattr(stages, name, stage(passed=True, seconds=seconds))
    report = stages.run()
    said = {name: (one["passed"], one["seconds"]) for name, one in report["stages"].items()}
    assert said == {
        "kernels": (True, 2.0),
        "speed": (True, 3.0),
        "confirm-chunking": (True, 15.0),  # up to the very end of the budget
        "calibration": (False, 0.0),
        "confirm-cache_aware": (False, 0.0),
        "confirm-prefetch": (False, 0.0),
    }
    assert report["stages"]["calibration"]["said"] == "not run: the budget is used up"
    assert (report["passed"], report["seconds"]) == (False, 20.0)
