"""`servetwin calibrate`: what is measured first, resumption, fits of few points, and a profile that simulates."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration import calibrate as calibration
from calibration.collection import read_collection
from calibration.fit import fit_profile
from calibration.holdout import residuals
from calibration.measurements import kernel_rows
from calibration.points import Extent, Point, plan, powers, rounds
from calibration.predict import predict_decode, predict_gemm, predict_prefill
from calibration.tables import TableError
from hwbackend.device import open_device
from hwbackend.harness import Work
from hwbackend.microbench.all import BENCHMARKS
from hwbackend.microbench.bench import Result
from hwbackend.samples import SampleStore, read_samples
from sim.cli import run_command
from sim.kv.replay.allocation_trace import read_allocations
from sim.model import load_model
from sim.profile import load_profile
from tests.calibration.known_law import HEADS, MEMORY, PEAK, collection, law, result
from workloads.errors import InputError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
TINY = Extent(max_tokens=8, max_seqs=4, max_context=64)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def device():
    opened = open_device("cpu")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def calibrated(config, tmp_path_factory):
    """One quick calibration through the command line, with its page."""
    out = tmp_path_factory.mktemp("calibrated") / "mine.json"
    size = ["--max-tokens", "8", "--max-seqs", "4", "--max-context", "64"]
    command = ["calibrate", "--device", "cpu", "--model", str(config), "--budget", "0.5", "--out", str(out)]
    assert run_command([*command, *size, "--report"]) == 0
    return out


# What is measured first


def test_ladders_are_refined_by_halves():
    ladder = powers(512)
    assert ladder == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert powers(100, 16) == [16, 32, 64, 100]
    due = rounds(ladder)
    assert set(due) == set(ladder)
    assert {rung for rung in ladder if due[rung] == 0} == {1, 16, 512}
    for latest in range(
        max(due.values()) + 1
    ):  # after each round no gap is more than twice another, but for rounding
        seen = [i for i, rung in enumerate(ladder) if due[rung] <= latest]
        gaps = np.diff(seen)
        assert gaps.max() <= 2 * gaps.min() + 1
    assert rounds([7]) == {7: 0}


def test_the_plan_has_every_benchmark_once_and_all_terms_in_round_0(device, config):
    points = plan(device, [load_model(config), load_model(config)], TINY)
    keys = {(p.benchmark, tuple(sorted(p.axes.items()))) for p in points}
    assert len(keys) == len(points)
    assert {p.benchmark for p in points} == set(BENCHMARKS)
    assert [p.due for p in points] == sorted(p.due for p in points)
    first = {p.benchmark for p in points if p.due == 0}
    assert first == {
        "gemm",
        "prefill_attention",
        "decode_attention",
        "elementwise",
        "device_memory",
        "transfer",
    }
    for point in points:
        assert set(point.axes) == set(BENCHMARKS[point.benchmark].axes)
    shapes = {(p.axes["n"], p.axes["k"]) for p in points if p.benchmark == "gemm"}
    assert shapes == {(128, 64), (64, 64), (192, 64), (64, 96)}  # LM head and QKV of this model are alike


# Measuring


def counting_clock():
    state = {"now": 0.0}

    def clock():
        state["now"] += 1.0
        return state["now"]

    return clock


POINTS = [
    Point("launch", {"op": "call", "calls": calls}, due) for calls, due in ((1, 0), (2, 0), (3, 1), (4, 2))
]


def test_round_0_is_measured_whatever_the_budget_and_the_rest_is_left(device, tmp_path):
    store = SampleStore(tmp_path / "raw", "here")
    left = calibration.measure_points(device, POINTS, 1e-9, store, lambda _: None, clock=counting_clock())
    assert left == POINTS[2:]
    assert [result.axes["calls"] for result in read_samples(tmp_path / "raw")] == [1, 2]


def test_a_second_start_measures_what_the_first_left(device, tmp_path):
    first = SampleStore(tmp_path / "raw", "here")
    calibration.measure_points(device, POINTS, 1e-9, first, lambda _: None, clock=counting_clock())
    second, told = SampleStore(tmp_path / "raw", "here", resume=True), []
    assert calibration.measure_points(device, POINTS, 1e9, second, told.append) == []
    assert [progress.result.axes["calls"] for progress in told] == [3, 4]
    assert len(second) == 4


def test_time_that_is_left_goes_into_further_passes_over_the_price_list(device, tmp_path):
    point = Point("elementwise", {"op": "silu_mul", "dtype": "float32", "tokens": 1, "hidden": 8, "heads": 1,
                                  "kv_heads": 1, "head_dim": 8, "inter": 8}, 0)  # fmt: skip
    store, told = SampleStore(tmp_path / "raw", "here"), []
    calibration.measure_points(device, [POINTS[0], point], 1e9, store, told.append)
    assert store.times("launch", POINTS[0].axes) == 1
    assert store.times("elementwise", point.axes) == calibration.PASSES
    assert [progress.turn for progress in told] == [0, *range(calibration.PASSES)]


def test_what_was_measured_is_kept_where_a_later_point_fails(device, tmp_path):
    broken = Point("launch", {"op": "call"}, 0)
    store = SampleStore(tmp_path / "raw", "here")
    with pytest.raises(ValueError, match="axes are"):
        calibration.measure_points(device, [POINTS[0], broken], 1.0, store, lambda _: None)
    assert len(read_samples(tmp_path / "raw")) == 1


# Fits of few points, against a known law


def test_a_known_law_is_found_again(device, tmp_path):
    rows = collection(tmp_path / "law", law(), device)
    profile = fit_profile(rows)
    for curve, predict, table in (
        (profile.gemm["float32"], predict_gemm, "gemm"),
        (profile.prefill_attention["float32"], predict_prefill, "attention_prefill"),
        (profile.decode_attention["float32"], predict_decode, "attention_decode"),
        (profile.decode_attention["float32"], predict_decode, "attention_decode_mixed"),
    ):
        error = np.abs(predict(curve, rows.tables[table]) / rows.tables[table].time_s - 1)
        assert np.median(error) < 0.03, table
        assert np.quantile(error, 0.9) < 0.10, table
    assert profile.elementwise.launch_s == pytest.approx(2e-5, rel=0.02)
    assert profile.elementwise.bytes_per_s == pytest.approx(1e10, rel=0.02)
    assert profile.device.hbm_bytes_per_s == pytest.approx(MEMORY)
    assert profile.device.pcie_bytes_per_s == pytest.approx(1e10)
    assert profile.device.flops_per_s["float32"] == pytest.approx(PEAK, rel=0.05)
    assert profile.device.nvlink_bytes_per_s is None


def test_residuals_are_those_of_points_held_out_and_noise_shows_in_them(device, tmp_path):
    exact = collection(tmp_path / "exact", law(), device)
    noisy = collection(tmp_path / "noisy", law(noise=0.1), device)
    by_term = {}
    for rows in (exact, noisy):
        for found in residuals(rows, fit_profile(rows)):
            by_term.setdefault(found.term, []).append(found.median)
    assert set(by_term) == {
        "gemm/float32",
        "prefill_attention/float32",
        "decode_attention/float32",
        "decode_attention/float32, mixed lengths",
        "elementwise",
    }
    for term, (clean, rough) in by_term.items():
        assert clean < 0.06, term
        assert clean < rough < 0.25, term


def test_only_what_the_curves_know_becomes_a_row():
    usual = {
        "kv_dtype": "float32",
        "batch": 1,
        "kv_len": 16,
        "layout": "paged",
        "lengths": "uniform",
        **HEADS,
    }
    results = [
        result("decode_attention", 1e-3, block_size=16, **usual),
        result("decode_attention", 1e-3, block_size=32, **usual),
        result("decode_attention", 1e-3, block_size=16, **{**usual, "layout": "contiguous"}),
        result("gemm", 1e-3, dtype="int8", m=1, n=8, k=8),
        result("gemm", 2e-3, dtype="float16", m=1, n=8, k=8),
        Result("gemm", {"dtype": "float32", "m": 1, "n": 8, "k": 8}, Work(0.0), skipped="why"),
    ]
    rows = kernel_rows(results, block_size=16)
    assert len(rows["attention_decode"]) == 1
    assert rows["gemm"] == [{"dtype": "bfloat16", "m": 1, "n": 8, "k": 8, "time_us": 2000.0}]


def test_a_collection_without_a_chain_or_with_a_broken_device_says_so(device, tmp_path):
    rows = collection(tmp_path / "law", law(), device)
    (tmp_path / "law" / "elementwise.parquet").unlink()
    with pytest.raises(TableError, match="no table elementwise"):
        fit_profile(read_collection(tmp_path / "law"))
    (tmp_path / "law" / "device.json").write_text("{}")
    with pytest.raises(TableError, match="not a measured device"):
        read_collection(tmp_path / "law")
    assert rows.measured


# The command


def test_a_calibration_leaves_a_profile_samples_tables_trace_and_page(calibrated):
    profile, raw = load_profile(calibrated), calibrated.with_name("mine_raw")
    assert set(profile.gemm) == set(profile.decode_attention) == {"float32"}
    assert profile.device.compute_capability == "cpu"
    assert profile.device.hbm_bytes_per_s > 1e8
    assert profile.host.call_s == 0.0
    assert {r.term for r in profile.residuals} >= {"gemm/float32", "decode_attention/float32", "elementwise"}
    assert len(read_samples(raw)) > 30
    assert len(read_allocations(raw / "allocations.csv")) > 100
    times = pq.read_table(raw / "gemm.parquet").to_pylist()
    assert {(row["n"], row["k"]) for row in times} == {(128, 64), (64, 64), (192, 64), (64, 96)}
    page = (raw / "calibration.html").read_text()
    for words in ("Measured against fitted", "Roofline", "What disturbed it", "gemm/float32"):
        assert words in page


def test_the_tables_are_fitted_again_to_the_same_curves(calibrated, tmp_path):
    raw = calibrated.with_name("mine_raw")
    assert run_command(["profile", "fit", "--kernels", str(raw), "--out", str(tmp_path / "again.json")]) == 0
    first, again = load_profile(calibrated), load_profile(tmp_path / "again.json")
    assert again.host is None  # it is no kernel's
    assert again.with_host(first.host).content_hash == first.content_hash


def scenario(tmp_path, config, calibrated, **engine):
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "num_gpu_blocks_override": 64, **engine}
    path = tmp_path / "scenario.yaml"
    path.write_text(
        f"model: {config}\n"
        f"hardware: {{profile: {calibrated}, weight_dtype: float32}}\n"
        f"engine: {json.dumps({'enforce_eager': True, 'async_scheduling': False, **limits})}\n"
        "workload: {num_requests: 12, request_rate: 50, input_tokens: 20, output_tokens: 6}\n"
    )
    return path


def test_the_profile_simulates_a_float32_engine(tmp_path, config, calibrated, capsys):
    path = scenario(tmp_path, config, calibrated)
    capsys.readouterr()
    assert run_command(["run", str(path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 12
    assert summary["mean_tpot_ms"] > 0
    assert run_command(["run", str(path), "--set", "hardware.weight_dtype=bfloat16"]) == 2
    assert "curve for bfloat16; it has float32" in capsys.readouterr().err
    assert run_command(["run", str(path), "--set", "engine.kv_cache_dtype=fp8"]) == 2
    assert "for fp8; it has float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget 0: seconds"),
        (["--device", "tpu"], "--device tpu: not one of auto, cpu, cuda"),
        (["--max-seqs", "1"], "--max-seqs 1: from 2"),
        (["--model", "nonsense"], "neither a shipped model"),
        (["--out", "nowhere/x.json"], "no directory nowhere"),
    ],
)
def test_refusals_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(["calibrate", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_replaced_unasked(calibrated, config, capsys):
    assert run_command(["calibrate", "--model", str(config), "--out", str(calibrated)]) == 2
    assert "exists already" in capsys.readouterr().err
    other = str(calibrated.with_name("other.json"))
    raw = str(calibrated.with_name("mine_raw"))
    assert (
        run_command(["calibrate", "--device", "cpu", "--model", str(config), "--out", other, "--raw", raw])
        == 2
    )
    assert "--resume adds to them" in capsys.readouterr().err


def test_a_page_needs_a_calibration(tmp_path):
    from dashboards.calibration_page import render

    with pytest.raises(InputError, match="no samples"):
        render(tmp_path)
    pq.write_table(pa.table({"benchmark": ["x"]}), tmp_path / "samples-0001.parquet")
    with pytest.raises(InputError, match="no column axes"):
        render(tmp_path)
