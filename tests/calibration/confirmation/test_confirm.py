"""Confirmations on the CPU: one whole run of each kind, what comes with the package, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from calibration.confirmation.confirm import confirm
from calibration.confirmation.files import write_confirmation
from calibration.confirmation.service import device_profile
from calibration.confirmation.shipped import SHIPPED
from calibration.confirmation.text import markdown_table, outcome_lines
from calibration.step_log import read_step_log
from calibration.validate_steps import compare_steps
from dashboards.confirmation_page import render
from hwbackend.device import open_device
from hwbackend.engine.server import check_scenario
from sim.cli import run_command
from sim.errors import ConfigError
from sim.profile import load_profile
from sim.scenario.reading import load_scenario
from sim.simulation import simulate
from sim.studies.arms import build_arms
from tests.calibration.confirmation.known_prices import PRICES

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
def confirmed(cpu):
    return confirm(TINY, [CHUNKS], cpu, repetitions=2, budget_s=8)


def test_a_confirmation_on_the_cpu(confirmed, tmp_path):
    outcome = confirmed.outcome
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
    write_confirmation(confirmed, tmp_path)
    saved = json.loads((tmp_path / "confirmation.json").read_text())
    assert saved == json.loads(json.dumps(document))
    for one in confirmed.runs:
        folder = tmp_path / "arms" / f"{one.arm.directory}.measured"
        assert json.loads((folder / "summary.json").read_text())["backend"] == "servetwin-engine"
        steps = read_step_log(folder)
        assert len(steps.steps) == sum(record.computes for record in one.served.records)
    default = next(one for one in confirmed.runs if one.arm.name == "chunked")
    assert compare_steps(read_step_log(tmp_path / "arms" / f"{default.arm.directory}.measured")).exact
    page = render(tmp_path).read_text(encoding="utf-8")
    assert "Gains" in page
    assert outcome.arms[0].name in page
    assert outcome.arms[0].name in outcome_lines(outcome)
    assert len(markdown_table([("tiny", outcome)]).splitlines()) == 4


def test_the_simulated_side_has_the_engines_memory_and_limits(confirmed):
    for simulated, one in zip(confirmed.simulated, confirmed.runs, strict=True):
        for result in simulated:
            assert result.summary["sim"]["num_gpu_blocks"] == 61
            measured = one.results[0]
            assert measured.service.limits == result.service.limits
            assert measured.service.capacity == result.service.capacity
            ours, theirs = result.requests.columns, measured.requests.columns
            assert (ours["input_tokens"] == theirs["input_tokens"]).all()
            assert (ours["output_tokens"] == theirs["output_tokens"]).all()


def test_the_device_shows_itself_by_microbenchmarks(cpu):
    profile = device_profile(cpu)
    device, identity = profile.device, cpu.identity
    assert (device.memory_bytes, device.sm_count) == (identity.memory.total_bytes, identity.compute_units)
    assert device.hbm_bytes_per_s == profile.elementwise.bytes_per_s > 0
    assert device.pcie_bytes_per_s > 0
    assert 0 < profile.elementwise.launch_s < 1e-3
    assert not profile.gemm
    assert not profile.decode_attention
    assert "product" not in device.source


def test_a_device_without_memory_for_a_copy_is_refused(cpu, monkeypatch):
    monkeypatch.setattr(type(cpu), "memory", lambda self: replace(self.identity.memory, free_bytes=10**6))
    with pytest.raises(ConfigError, match=r"device_memory does not run here: needs 0\.1 GB"):
        device_profile(cpu)


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
    confirmed = confirm(TINY, [CHUNKS], cpu, repetitions=1, listed=listed)
    assert confirmed.outcome.as_json()["calibration"]["profile"] == listed.name
    for one, arm in zip(confirmed.runs, confirmed.outcome.arms, strict=True):
        service = replace(one.results[0].service, cost=PRICES.cost(0))
        alone = simulate(one.arm.scenario, service, confirmed.load).summary
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


def test_bad_options_are_one_line(capsys):
    for arguments, words in (
        (["confirm", "nothing.yaml", "--vary", "a=1,2", "--device", "cpu"], "no such file"),
        (["confirm", "chunking", "--device", "tpu"], "--device tpu"),
        (["confirm", "chunking", "--budget", "0"], "--budget 0"),
        (["confirm", "chunking", "--metric", "luck", "--device", "cpu"], "--metric luck"),
        (["confirm", "chunking", "--report"], "--report"),
        (["confirm", "chunking", "--json", "--markdown"], "--markdown"),
    ):
        assert run_command(arguments) == 2, arguments
        error = capsys.readouterr().err.strip().splitlines()
        assert words in error[-1], arguments
