"""Runs under inference-perf's shared prefixes: what is read, what is drawn, what is never used."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.readers import aggregates, open_loop, per_request
from sim.service import build_service
from tests.data import shared_data
from workloads.errors import InputError

EXPERIMENT = {
    "experiment": "one",
    "stage": "0",
    "model": "meta-llama/Llama-2-7b-hf",
    "hardware": "H100-SXM-80GB",
    "precision": "FP16/BF16",
    "tp": "1",
    "max_model_len": "4096",
    "max_num_batched_tokens": "2048",
    "max_num_seqs": "128",
    "kv_blocks_total_gpu": "7462",
    "workload": "codegen",
    "overloaded_in_source": "0",
    "rate_rps": "2",
    "duration_s": "2",
    "send_duration_s": "1.9",
    "system_prompt_len": "100",
    "output_len_requested": "11",
    "prompt_len_mean": "200.4",
}
REQUESTS = [  # arrival [us], input tokens, failed, ttft [s], e2e [s], prompt
    (0, 200, 0, 0.1, 0.6, 0),
    (400_000, 201, 0, 0.2, 0.6, 1),
    (900_000, 0, 1, "", 300.0, 0),
    (1_700_000, 201, 0, 0.1, 0.4, 1),
    (3_000_000, 200, 0, 0.3, 1.4, 0),
    (3_500_000, 201, 0, 0.1, 1.2, 1),
]


def write_table(path: Path, rows: list[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_requests(path: Path, rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("arrival_time_us", "input_tokens", "has_error", "ttft_s", "e2e_s", "prompt_id_approx")
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows([names, *rows])


@pytest.fixture
def folder(tmp_path):
    """Two stages, 4 and 2 requests; the third failed."""
    whole = EXPERIMENT | {"stage": "-1", "rate_rps": ""}
    second = EXPERIMENT | {"stage": "1", "rate_rps": "1", "duration_s": "2"}
    write_table(tmp_path / "experiments.csv", [whole, second, EXPERIMENT])
    write_requests(tmp_path / "requests" / "one.csv.gz", REQUESTS)
    return tmp_path


def test_requests_are_as_recorded(folder):
    [run] = per_request.read(folder / "experiments.csv")
    trace = run.workload.trace
    assert trace.arrival_ns.tolist() == [1000 * row[0] for row in REQUESTS]
    assert trace.input_tokens.tolist() == [200, 201, 200, 201, 200, 201]  # of the failed one by its prompt
    assert set(trace.output_tokens.tolist()) == {11}  # what was asked for, not what the text came to
    assert run.scenario.engine.num_gpu_blocks_override == 7462


def test_parts_are_the_stages_without_what_failed(folder):
    [run] = per_request.read(folder / "experiments.csv")
    first, second = run.parts
    assert first.counted.tolist() == [True, True, False, True, False, False]
    assert second.counted.tolist() == [False] * 4 + [True, True]
    assert [part.labels["request_rate"] for part in run.parts] == [2.0, 1.0]


def test_latencies_follow_from_the_requests(folder):
    [run] = per_request.read(folder / "experiments.csv")
    measured = run.parts[0].measured
    assert measured["mean_ttft_ms"] == pytest.approx(400 / 3)
    assert measured["median_e2el_ms"] == pytest.approx(600)
    assert measured["mean_tpot_ms"] == pytest.approx((50 + 40 + 30) / 3)  # over 10 gaps, whatever was counted


def test_without_requests_a_run_is_inputs_only(folder):
    (folder / "requests" / "one.csv.gz").unlink()
    [run] = per_request.read(folder / "experiments.csv")
    assert run.parts == ()
    assert len(run.workload.trace) == 6


def test_overload_is_scored_apart(folder):
    write_table(folder / "experiments.csv", [EXPERIMENT | {"overloaded_in_source": "1", "duration_s": "3"}])
    [run] = per_request.read(folder / "experiments.csv")
    assert [part.apart for part in run.parts] == [per_request.OVERLOADED]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hardware": "H900"}, "no profile for 'H900'; known are H100"),
        ({"precision": "FP2"}, "no precision 'FP2'"),
        ({"rate_rps": "fast"}, "experiments.csv: one: rate_rps is 'fast'; a number above 0"),
        ({"rate_rps": "nan"}, "experiments.csv: one: rate_rps is 'nan'; a number above 0"),
        ({"rate_rps": "1e300"}, "experiments.csv: one: 1e[+]300 requests/s"),
        ({"stage": "nan"}, "experiments.csv: one: stage is 'nan'; a whole number"),
        ({"stage": "-1"}, "experiments.csv: one: no row of a stage"),
        ({"prompt_len_mean": "inf"}, "experiments.csv: one: prompt_len_mean is 'inf'; a number above 0"),
        ({"output_len_requested": "1"}, "output_len_requested is '1'; a whole number, 2 or more"),
        ({"overloaded_in_source": "", "duration_s": "3"}, "overloaded_in_source is ''; a whole number"),
        ({"duration_s": "60"}, "6 requests, and the experiment's stages sent 120"),
    ],
)
def test_bad_rows_are_named(folder, change, message):
    write_table(folder / "experiments.csv", [EXPERIMENT | change])
    with pytest.raises(InputError, match=message):
        per_request.read(folder / "experiments.csv")


def test_a_missing_column_is_named(folder):
    write_table(folder / "experiments.csv", [{"experiment": "one", "stage": "0"}])
    with pytest.raises(InputError, match="no column kv_blocks_total_gpu"):
        per_request.read(folder / "experiments.csv")
    assert not per_request.recognises(folder / "experiments.csv")


WORKLOAD = {
    "exp": "one",
    "stage": "0",
    "model": "meta-llama/Llama-2-7b-hf",
    "tp": "1",
    "max_model_len": "4096",
    "max_num_batched_tokens": "2048",
    "max_num_seqs": "128",
    "load_type": "constant",
    "rate_rps": "2",
    "duration_s": "3",
    "system_prompt_len": "100",
    "question_len": "95",
    "output_len": "11",
    "prompt_len_mean": "200.4",
}
SUMMARY = {
    "exp": "one",
    "stage": "0",
    "n_success": "6",
    "n_fail": "0",
    **{f"ttft_{name}_ms": "100" for name in ("mean", "median", "p90", "p95", "p99")},
    **{f"e2e_{name}_ms": "600" for name in ("mean", "median", "p90", "p95", "p99")},
    "reported_itl_mean_ms_WRONG_half": "25",
}


def test_summaries_beside_a_table_of_workloads_are_its_results(tmp_path):
    other = WORKLOAD | {"exp": "two-general"}
    table = write_table(tmp_path / "workloads.csv", [WORKLOAD, other])
    assert [run.parts for run in open_loop.read(table)] == [(), ()]
    write_table(tmp_path / "measured.csv", [SUMMARY])
    one, two = open_loop.read(table)
    assert one.parts[0].measured["mean_tpot_ms"] == pytest.approx(50)  # (600 - 100) / 10, not the reported 25
    assert one.parts[0].counted.tolist() == [True] * 6
    assert two.parts == ()
    assert two.labels["workload"] == "general"


def test_summaries_of_survivors_stand_apart(tmp_path):
    table = write_table(tmp_path / "workloads.csv", [WORKLOAD])
    write_table(tmp_path / "measured.csv", [SUMMARY | {"n_fail": "3"}])
    assert [part.apart for part in open_loop.read(table)[0].parts] == [open_loop.OVERLOADED]


AGGREGATE = {
    "experiment": "7-seven",
    "exp_id": "7",
    "stage": "-1",
    "model": "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
    "workload": "general",
    "hardware": "H100",
    "tp": "2",
    "precision": "FP8",
    "cpu_offload": "True",
    "gpu_mem_util": "",
    "max_num_batched_tokens": "1024",
    "stage_rates_rps": "2;1",
    "stage_durations_s": "3;4?",
    "system_prompt_len": "100",
    "question_len": "100",
    "output_len": "11",
    "workload_source": "inferred",
}
ACTUAL = {
    f"actual_{name}_{statistic}_ms": value
    for name, value in (("ttft", "100"), ("e2e", "600"))
    for statistic in ("mean", "p90", "p99")
}


def test_aggregates_give_a_part_for_each_stage(tmp_path):
    rows = [AGGREGATE | ACTUAL | {"stage": stage} for stage in ("-1", "0", "1")]
    rows[2]["actual_e2e_mean_ms"] = "400"
    [run] = aggregates.read(write_table(tmp_path / "experiments.csv", rows))
    assert [int(part.counted.sum()) for part in run.parts] == [6, 4]
    assert [part.measured["mean_tpot_ms"] for part in run.parts] == pytest.approx([50, 30])
    assert run.labels["model"] == "llama-4-scout-17b-16e"
    assert run.scenario.hardware.weight_dtype == "fp8"
    assert set(run.workload.trace.input_tokens.tolist()) == {209}  # 200 asked for, tokenised anew
    assert any("host memory" in caveat for caveat in run.caveats)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": "nan"}, "7-seven: stage is 'nan'; a whole number"),
        ({"stage_rates_rps": "-2;1"}, "7-seven: stage_rates_rps is '-2'; a number above 0"),
        ({"stage_rates_rps": "2;nan"}, "7-seven: stage_rates_rps is 'nan'; a number above 0"),
        ({"stage_rates_rps": "2"}, "7-seven: 1 stage_rates_rps, and 2 stage_durations_s"),
        ({"stage_rates_rps": "2;0.01"}, "7-seven: 0.01 requests/s for 4 s; 1 to 10,000,000 requests"),
        ({"output_len": "1"}, "7-seven: output_len is '1'; a whole number, 2 or more"),
        ({"gpu_mem_util": "most"}, "7-seven: gpu_mem_util is 'most'; a number above 0"),
    ],
)
def test_bad_aggregates_are_named(tmp_path, change, message):
    table = write_table(tmp_path / "experiments.csv", [AGGREGATE | change])
    with pytest.raises(InputError, match=f"experiments.csv: {message}"):
        aggregates.read(table)


def test_a_row_without_all_fields_is_named(tmp_path):
    table = write_table(tmp_path / "experiments.csv", [AGGREGATE])
    table.write_text(table.read_text() + "8-eight,8\n")
    with pytest.raises(InputError, match=r"experiments\.csv: row 2 has not one field for each column"):
        aggregates.read(table)


def test_aggregates_without_results_are_inputs_only(tmp_path):
    table = write_table(tmp_path / "eval.csv", [AGGREGATE])
    assert [run.parts for run in aggregates.read(table)] == [()]
    assert [len(one.stages()) for one in aggregates.experiments(table)] == [2]


def test_a_stage_without_a_row_is_named(tmp_path):
    table = write_table(tmp_path / "experiments.csv", [AGGREGATE | ACTUAL | {"stage": "0"}])
    with pytest.raises(InputError, match="7-seven: no row of stage 1"):
        aggregates.read(table)


# --- the measured data -----------------------------------------------------------------------------------------------


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def recorded() -> dict[str, MeasuredRun]:
    path = shared_data("vllm_h100_perrequest", "experiments.csv")
    return {run.name: run for run in per_request.read(path)}


def test_stages_agree_with_the_source_s_own_summary(recorded):
    rows = {
        (row["experiment"], int(row["stage"])): row
        for row in table_of(shared_data("vllm_h100_perrequest", "experiments.csv"))
    }
    checked = 0
    for run in recorded.values():
        for part in run.parts:
            row = rows[run.name, part.labels["stage"]]
            assert part.counted.sum() == int(row["n_success"])
            for metric, column in (
                ("mean_ttft_ms", "ttft_ms_mean"),
                ("p99_ttft_ms", "ttft_ms_p99"),
                ("median_e2el_ms", "e2e_ms_median"),
                ("mean_tpot_ms", "itl_derived_ms_requested_outlen"),
            ):
                if part.apart is None or metric != "median_e2el_ms":
                    assert part.measured[metric] == pytest.approx(float(row[column]), rel=1e-4)
            checked += 1
    assert checked == 6


def test_half_counted_gaps_are_not_read(recorded):
    """TPOT, times its gaps, and TTFT make up E2E in every part."""
    for run in recorded.values():
        gaps = run.labels["output_tokens"] - 1
        for part in run.parts:
            of_parts = part.measured["mean_ttft_ms"] + gaps * part.measured["mean_tpot_ms"]
            assert of_parts == pytest.approx(part.measured["mean_e2el_ms"], rel=1e-9)


def test_the_open_loop_table_says_the_same_of_the_same_runs(recorded):
    path = shared_data("e2e_openloop", "inference_perf_h100_workloads.csv")
    runs = {run.name: run for run in open_loop.read(path)}
    assert len(runs) == 16
    assert {name for name, run in runs.items() if run.parts} == set(recorded)
    for name, run in recorded.items():
        for part, other in zip(run.parts, runs[name].parts, strict=True):
            assert part.apart is None or other.apart is not None
            for metric in ("median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"):
                assert other.measured[metric] == pytest.approx(part.measured[metric], rel=1e-3)


def test_every_aggregate_and_blind_run_can_be_set_up():
    folder = shared_data("vllm_multi_gpu_aggregates")
    runs = aggregates.read(folder / "experiments.csv") + aggregates.read(folder / "eval_inputs_only.csv")
    runs += per_request.read(shared_data("vllm_h100_perrequest", "blind_inputs_only.csv"))
    assert len(runs) == 13 + 38 + 12
    assert all(bool(run.parts) == (run.curve in {r.curve for r in runs[:13]}) for run in runs)
    for run in runs:
        build_service(run.scenario)
