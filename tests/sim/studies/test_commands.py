"""`compare` and `plan` as a user meets them: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json

import pytest
import yaml

from sim.cli import run_command
from sim.commands import compare as compare_module
from sim.errors import ConfigError

SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "workload": {
        "input_tokens": {"uniform": [50, 900]},
        "output_tokens": {"uniform": [5, 120]},
        "request_rate": 30.0,
        "num_requests": 150,
    },
    "slo": {"ttft_ms": 400, "tpot_ms": 30},
}
BATCHERS = "policies.batcher=chunked,{name: dynamic_chunked, target_tpot_ms: 8}"
ARMS = {"chunked", "dynamic_chunked-target_tpot_ms=8"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return path


def test_compare_prints_one_json_document(file, capsys):
    assert run_command(["compare", str(file), "--vary", BATCHERS, "--replications", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in document["arms"]] == ["chunked", "dynamic_chunked(target_tpot_ms=8)"]
    assert document["replications"] == 2


def test_compare_prints_arms_differences_and_verdict(file, capsys):
    vary = "engine.cudagraph_capture_sizes=[1, 2, 256],[1, 2, 4, 256]"
    assert run_command(["compare", str(file), "--vary", vary, "--replications", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "[1, 2, 4, 256]" in text  # brackets survive
    assert "p99_ttft_ms" in text
    assert "95% interval" in text
    assert "no difference shown" in text


def test_compare_of_many_arms_prints_the_metric_that_decides(file, capsys):
    vary = "engine.max_num_seqs=1,2,64,128"
    assert (
        run_command(["compare", str(file), "--vary", vary, "--replications", "1", "--metric", "p90_ttft_ms"])
        == 0
    )
    assert "p90_ttft_ms less that of max_num_seqs=1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "column"),
    [
        (["--vary", "engine.max_num_batched_tokens=512,2048,8192"], "max_num_batched_tokens 512 2048 8192"),
        (
            ["--vary", "engine.max_num_batched_tokens=512,1024,2048,8192"],
            "max_num_batched_tokens request_goodput",
        ),
        (
            ["--vary", "engine.max_num_batched_tokens=512,2048", "--vary", BATCHERS],
            "#4 max_num_batched_tokens=2048",
        ),
    ],
)
def test_tables_fit_80_columns_and_cut_nothing_short(file, capsys, monkeypatch, options, column):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["compare", str(file), *options, "--replications", "1"]) == 0
    text = capsys.readouterr().out
    tables = text.partition("requests in each of")[0].splitlines()[:-1]
    assert column in " ".join(text.split())
    assert "…" not in text
    assert max(map(len, tables)) <= 80


def test_compare_writes_the_comparison_and_a_run_per_arm(file, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["compare", str(file), "--vary", BATCHERS, "--replications", "2", "--out", str(out), "--json"]
    assert run_command(command) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "comparison.json").read_text())
    assert {folder.name for folder in (out / "arms").iterdir()} == ARMS
    for folder in (out / "arms").iterdir():
        files = {path.name for path in folder.iterdir()}
        assert files >= {"scenario.lock.yaml", "summary.json", "requests.parquet", "timeline.parquet"}
    lock = yaml.safe_load((out / "scenario.lock.yaml").read_text())
    assert lock["scenario"]["policies"]["batcher"]["name"] == "chunked"  # what the others are compared with
    assert (out / "report.html").stat().st_size > 1000  # without being asked
    assert run_command(command) == 0  # its own directory may be replaced


def test_compare_without_a_renderer_says_so_and_goes_on(file, tmp_path, capsys, monkeypatch):
    def no_renderer(directory):
        raise ConfigError("this installation has no page renderer")

    monkeypatch.setattr(compare_module, "render", no_renderer)
    arguments = [
        "compare",
        str(file),
        "--vary",
        BATCHERS,
        "--replications",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert run_command(arguments) == 0
    assert "no report.html" in capsys.readouterr().err
    assert (tmp_path / "out" / "comparison.json").exists()
    other = tmp_path / "other"
    assert run_command([*arguments[:-1], str(other), "--report"]) == 2  # asked for, and not there
    assert not other.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare"], "--vary: missing"),
        (["compare", "--vary", "engine.max_num_sqs=1,2"], "did you mean max_num_seqs?"),
        (["compare", "--vary", BATCHERS, "--metric", "p9_ttft"], "no such metric"),
        (["compare", "--vary", BATCHERS, "--replications", "0"], "at least 1"),
        (["plan", "--slo", "ttft=5"], "write METRIC=MS"),
        (["plan", "--set", "workload.request_rate=inf"], "no rate to plan for"),
        (["plan", "--report"], "needs --out"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(file, tmp_path, capsys, arguments, message):
    out = [] if arguments[-1] == "--report" else ["--out", str(tmp_path / "out")]
    assert run_command([arguments[0], str(file), *arguments[1:], *out]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]


def test_plan_prints_and_writes(file, tmp_path, capsys):
    out = tmp_path / "plan"
    arguments = ["plan", str(file), "--replications", "2", "--out", str(out)]
    assert run_command([*arguments, "--json", "--report"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((out / "plan.json").read_text())
    assert document["slo"] == {"p99_ttft_ms": 400.0, "p99_tpot_ms": 30.0}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>Capacity plan: llama-3.1-8b on h200_sxm</h1>" in page
    lock = yaml.safe_load((out / "scenario.lock.yaml").read_text())
    assert lock["scenario"]["model"] == "llama-3.1-8b"
    assert lock["profile"]["hash"] in page
    assert run_command(["run", str(file), "--out", str(out)]) == 2  # a run replaces no plan
    assert "another kind" in capsys.readouterr().err
    assert run_command(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "greatest rate on 1 replica:" in text
    assert "fewest replicas for 30 requests/s: 1 (1 GPU" in text


def test_plan_says_no_with_its_exit_code_and_still_answers(file, tmp_path, capsys):
    out = tmp_path / "plan"
    assert run_command(["plan", str(file), "--slo", "p99_ttft_ms=0.5", "--json", "--out", str(out)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["slo_met"] is False
    assert document["replicas"] is None
    assert (out / "plan.json").exists()
    assert run_command(["plan", str(file), "--slo", "p99_ttft_ms=0.5"]) == 1
    assert "cannot be met" in capsys.readouterr().out
