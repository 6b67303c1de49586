"""Runs of a vLLM engine on a CPU: what is read, and how right the twin is that knows the calibration runs alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from calibration.engine_log import read_engine_log
from calibration.engine_log_errors import step_seconds
from calibration.serving.readers import cpu_engine
from sim.profile import load_profile
from sim.service import build_service
from sim.simulation import simulate
from tests.data import shared_data
from tests.fidelity.cpu_engine import (
    UNNAMED,
    calibrated,
    errors,
    measured_runs,
    slower,
    speeds,
    spread,
    step_spread,
)
from workloads.errors import InputError

SERVED = (
    "A_chunk256_load40",
    "A_chunk256_load70",
    "A_chunk256_load70_rep2",
    "C_prefix_multiturn",
    "D_smallkv128_load70",
)
ASKED = ("A_chunk256_load40", "A_chunk256_load70", "A_chunk256_load70_rep2", "D_smallkv128_load70")
"""Runs whose TPOT and E2E are to be predicted within the spread of repeats and 5%."""


@pytest.fixture(scope="module")
def data():
    return shared_data("vllm_cpu_engine")


@pytest.fixture(scope="module")
def profile(data):
    return calibrated(data)


@pytest.fixture(scope="module")
def runs(data):
    return {run.name: run for run in measured_runs(data)}


class TestAccuracy:
    """Figures of `python -m tests.fidelity.cpu_engine`. No run but `calib_*` enters the profile."""

    def test_steps_are_within_the_spread_of_the_same_step_done_twice(self, data, profile):
        log = read_engine_log([data / name for name in SERVED])
        predicted = [step_seconds(profile, log.model, run) for run in log.runs]
        measured = [run.duration_s for run in log.runs]
        error = np.abs(np.concatenate(predicted) / np.concatenate(measured) - 1)
        median, p90 = step_spread(data)  # 10.3%, 28.2%
        assert np.median(error) < median  # 9.1%
        assert np.quantile(error, 0.9) < p90  # 25.9%
        for ours, theirs in zip(predicted, measured, strict=True):
            assert abs(ours.sum() / theirs.sum() - 1) < 0.05  # -4.6% to +4.1%

    def test_means_are_within_the_spread_of_repeats_and_5_percent(self, profile, runs):
        between = spread(list(runs.values()))
        assert between["mean_tpot_ms"] == pytest.approx(0.062, abs=0.001)
        assert between["mean_e2el_ms"] == pytest.approx(0.070, abs=0.001)
        for name in ASKED:
            error = errors(runs[name], profile)
            for metric in ("mean_tpot_ms", "mean_e2el_ms"):  # -4.9% to +9.5%, -4.9% to +11.4%
                assert abs(error[metric]) < between[metric] + 0.05, (name, metric)
            assert abs(error["request_throughput"]) < between["request_throughput"], name

    def test_sessions_too(self, profile, runs):
        error = errors(runs["C_prefix_multiturn"], profile)
        assert abs(error["mean_tpot_ms"]) < 0.06  # -3.5%
        assert abs(error["mean_e2el_ms"]) < 0.10  # -8.2%, on a machine that was 7.5% slower

    def test_what_is_left_is_the_speed_of_the_machine(self, data, profile, runs):
        """Not a prediction: the speed of each run is an estimate from all runs."""
        speed = speeds(data)
        for name in ASKED:
            error = errors(runs[name], slower(profile, speed[name]))
            assert abs(error["mean_tpot_ms"]) < 0.08, name  # -0.4% to +6.8%
            assert abs(error["mean_e2el_ms"]) < 0.06, name  # +1.4% to +4.8%

    def test_what_a_prompt_finds_in_the_cache_is_what_it_found(self, data, profile, runs):
        run = runs["C_prefix_multiturn"]
        done = simulate(run.scenario, build_service(run.scenario, profile), run.workload).requests
        with (data / run.name / "requests.csv").open() as file:
            found = {(row["session"], row["turn"]): int(row["cached_tokens"]) for row in csv.DictReader(file)}
        assert int(done.columns["cached_tokens"].sum()) == sum(found.values()) == 41_056
        assert sorted(done.columns["cached_tokens"]) == sorted(found.values())


class TestReader:
    def test_what_was_measured_is_what_the_recorder_says(self, data, runs):
        assert set(runs) == set(SERVED)
        for name, run in runs.items():
            said = json.loads((data / name / "meta.json").read_text())["summary"]
            (part,) = run.parts
            assert len(run.workload.trace) == said["n"]
            for ours, theirs in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2el", "e2e_s")):
                for statistic, key in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99")):
                    value = 1e3 * said[theirs][key]
                    assert part.measured[f"{statistic}_{ours}_ms"] == pytest.approx(value, rel=1e-4)

    def test_repeats_and_loads_share_a_curve_and_configurations_do_not(self, data, runs):
        curves = {name: run.curve for name, run in runs.items()}
        assert len({curves[name] for name in ASKED[:3]}) == 1
        assert len(set(curves.values())) == 3
        one, other = runs["A_chunk256_load70"], runs["A_chunk256_load70_rep2"]
        assert one.scenario.engine == other.scenario.engine
        assert one.workload.trace.arrival_ns.tolist() == other.workload.trace.arrival_ns.tolist()

    def test_runs_without_results_are_read_too(self, data, runs):
        blind = [run for run in cpu_engine.read(data, UNNAMED) if not run.parts]
        assert len(blind) == 9
        (again,) = (run for run in blind if run.name == "C_prefix_multiturn_kv80")
        assert again.workload.trace.arrival_ns.tolist() == runs[SERVED[3]].workload.trace.arrival_ns.tolist()
        assert again.scenario.engine.num_gpu_blocks_override == 80

    def test_calibration_runs_are_named_and_not_predicted(self, data, runs):
        logs = [folder.name for folder in cpu_engine.calibration_logs(data)]
        assert logs == ["calib_decode", "calib_decode_rep2", "calib_prefill", "calib_prefill_rep2"]
        assert not set(logs) & set(runs)


MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1408,
    "max_position_embeddings": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 12,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}
ARGS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 2048,
    "enforce_eager": True,
    "enable_prefix_caching": True,
}
META = {
    "run": "one",
    "engine": "vllm",
    "version": "0",
    "model": MODEL,
    "engine_args": ARGS,
    "num_kv_blocks": 64,
    "block_size": 32,
    "trace_seed": 3,
}
COLUMNS = (
    "request_id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "ttft_s",
    "e2e_s",
    "session",
    "parent",
    "think_s",
    "sys_id",
)
ROWS = [  # b's second turn can come before the first of c, and came after it
    ("b0", "0.5", "300", "20", "0.1", "2.0", "0", "", "0.0", "1"),
    ("c0", "1.5", "290", "3", "0.2", "0.4", "1", "", "0.0", "1"),
    ("b1", "3.0", "350", "1", "0.1", "0.1", "0", "b0", "0.5", "1"),
]


def write_runs(root: Path, rows=ROWS, *, columns=COLUMNS, **meta) -> Path:
    for name in ("one", "calib_one"):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "steps.csv").write_text("step\n")
        (folder / "meta.json").write_text(json.dumps(META | meta))
        with (folder / "requests.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)
    return root


def test_turns_wait_for_answers_and_share_what_was_said(tmp_path):
    (run,) = cpu_engine.read(write_runs(tmp_path), UNNAMED)
    trace = run.workload.trace
    assert trace.input_tokens.tolist() == [300, 350, 290]  # by the earliest time at which each could be sent
    assert trace.arrival_ns.tolist() == [500_000_000, 1_000_000_000, 1_500_000_000]
    assert trace.turns.predecessor.tolist() == [-1, 0, -1]
    assert trace.turns.think_ns.tolist() == [0, 500_000_000, 0]
    blocks = [trace.hashes.of(i).tolist() for i in range(3)]
    assert blocks[0][:8] == blocks[1][:8] == blocks[2][:8]  # the system prompt of 256 tokens
    assert blocks[1][8] == blocks[0][8] != blocks[2][8]  # and 32 more of the talk that goes on
    assert run.parts[0].measured["mean_ttft_ms"] == pytest.approx(1e3 * 0.4 / 3)
    assert run.parts[0].measured["request_throughput"] == pytest.approx(3 / 2.6)


def test_nothing_measured_enters_a_prediction(tmp_path):
    """Other latencies and later arrivals of later turns: the same scenario and requests."""
    (one,) = cpu_engine.read(write_runs(tmp_path / "a"), UNNAMED)
    late = [(*row[:4], "7.0", "9.0", *row[6:]) for row in ROWS]
    late[2] = ("b1", "11.0", *late[2][2:])
    (other,) = cpu_engine.read(write_runs(tmp_path / "b", late), UNNAMED)
    assert one.scenario.engine == other.scenario.engine
    for name in ("arrival_ns", "input_tokens", "output_tokens", "session"):
        assert getattr(one.workload.trace, name).tolist() == getattr(other.workload.trace, name).tolist()
    assert one.parts[0].measured != other.parts[0].measured


def test_a_blind_table_takes_first_arrivals_from_the_measured_run_of_its_trace(tmp_path):
    root = write_runs(tmp_path)
    kept = [i for i, name in enumerate(COLUMNS) if name not in ("arrival_s", "ttft_s", "e2e_s")]
    (root / "blind_inputs").mkdir()
    meta, table = root / "blind_inputs" / "two.meta.json", root / "blind_inputs" / "two.csv"
    lines = [[row[i] for i in kept] for row in (COLUMNS, *ROWS)]
    table.write_text("".join(",".join(line) + "\n" for line in lines))
    meta.write_text(json.dumps(META | {"run": "two", "num_kv_blocks": 32}))
    one, two = cpu_engine.read(root, UNNAMED)
    assert two.parts == ()
    assert two.workload.trace.arrival_ns.tolist() == one.workload.trace.arrival_ns.tolist()
    meta.write_text(json.dumps(META | {"run": "two", "trace_seed": 4}))
    with pytest.raises(InputError, match=r"two.csv:2: not a request of a run"):
        cpu_engine.read(root, UNNAMED)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, "arrival_s", "nan"), (1, "ttft_s", "-1"), (1, "prompt_tokens", "many"), (2, "parent", "zz")],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path, row, column, value):
    rows = [list(one) for one in ROWS]
    rows[row][COLUMNS.index(column)] = value
    with pytest.raises(InputError, match=rf"requests.csv:{row + 2}: not a request of a run") as caught:
        cpu_engine.read(write_runs(tmp_path, rows), UNNAMED)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"trace_seed": None}, "meta.json: not the meta data of a run"),
        ({"engine_args": {}}, "meta.json: not the meta data of a run"),
        ({"block_size": 0}, "engine.block_size"),
    ],
)
def test_broken_meta_data_are_one_line(tmp_path, meta, message):
    with pytest.raises(InputError, match=message):
        cpu_engine.read(write_runs(tmp_path, **meta), UNNAMED)


def test_what_is_recognised(tmp_path):
    assert cpu_engine.recognises(write_runs(tmp_path / "runs"))
    assert not cpu_engine.recognises(tmp_path / "runs" / "one")
    assert not cpu_engine.recognises(tmp_path / "runs" / "one" / "meta.json")
    assert not cpu_engine.recognises(tmp_path / "none")
    with pytest.raises(InputError, match="no run calib_"):
        cpu_engine.calibration_logs(tmp_path)
    with pytest.raises(InputError, match=r"no run with meta\.json and steps\.csv"):
        cpu_engine.read(tmp_path, UNNAMED)


def test_the_profile_that_is_given_is_the_hardware(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(load_profile("h100_sxm").to_json())
    (run,) = cpu_engine.read(write_runs(tmp_path / "runs"), path)
    assert build_service(run.scenario).profile.content_hash == load_profile("h100_sxm").content_hash
    assert build_service(run.scenario).model.num_layers == 12
