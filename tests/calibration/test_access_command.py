"""`servetwin access` as a user meets it: a recording, what it shows, its replay in a scenario, one line per mistake."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
import yaml

from sim.cli import run_command
from sim.kv.access.recording_files import read_recording
from sim.kv.access.reuse import Reuse

TINY = str(files("calibration") / "confirmation" / "scenarios" / "tiny_llama" / "config.json")
SCENARIO = {
    "model": TINY,
    "hardware": {"gpu": "h100_sxm"},
    "engine": {"max_num_seqs": 3, "max_model_len": 256, "num_gpu_blocks_override": 61},
    "workload": {
        "input_tokens": {"uniform": [60, 120]},
        "output_tokens": {"uniform": [4, 12]},
        "max_concurrency": 3,
        "num_requests": 6,
    },
}
ALONE = ["--set=workload={input_tokens: 100, output_tokens: 7, max_concurrency: 1, num_requests: 1}"]


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return str(path)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_scenario_is_recorded_described_and_replayed(scenario, tmp_path, capsys, suffix):
    out = tmp_path / f"reads.{suffix}"
    record = [
        "access",
        "record",
        scenario,
        "--out",
        str(out),
        "--steps",
        "6",
        "--pages",
        "3",
        "--device",
        "cpu",
    ]
    assert run_command([*record, "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert "random weights choose by chance" in captured.err
    assert "wrote" in captured.err
    recording = read_recording(out)
    assert (recording.steps, recording.header.num_layers, recording.header.random_weights) == (6, 4, True)
    assert run_command(["access", "stats", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    reuse = Reuse(recording)
    assert (said["layers"], said["heads"], said["steps"]) == (4, 1, 6)
    assert [row["pages"] for row in said["per_layer"]] == [3.0] * 4
    assert said["layer_reuse"]["average"]["measured"] == reuse.cross_layer.average.measured
    assert said["layer_reuse"]["verdict"] == "not judged"
    assert said["per_layer"][0]["layer_reuse"]["measured"] is None
    access = f"--set=kv_access={{pattern: {{name: recorded, path: {out}}}, layer_groups: 4}}"
    assert run_command(["run", scenario, access, *ALONE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sim"]["prefetch"]["reads"] == 6 * 4 * 3  # what was recorded


def test_the_same_scenario_is_the_same_recording_and_other_weights_another(scenario, tmp_path, capsys):
    contents = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        out = tmp_path / f"{name}.jsonl"
        record = ["access", "record", scenario, "--out", str(out), "--steps", "3", "--device", "cpu"]
        assert run_command([*record, "--weights-seed", seed]) == 0
        contents.append(out.read_bytes())
    assert contents[0] == contents[1] != contents[2]
    assert "by chance" in capsys.readouterr().out


def test_the_table_names_layers_and_heads_and_the_page_lies_beside_the_file(scenario, tmp_path, capsys):
    out = tmp_path / "reads.parquet"
    record = ["access", "record", scenario, "--out", str(out), "--steps", "3", "--heads", "apart"]
    assert run_command([*record, "--device", "cpu"]) == 0
    capsys.readouterr()
    assert run_command(["access", "stats", str(out), "--report"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[3:11]] == [
        f"{i}.{h}" for i in range(4) for h in (0, 1)
    ]
    assert "average 60.7%, first 92.0%, middle 40.0%: not judged" in " ".join(printed.split())
    page = (tmp_path / "reads.html").read_text(encoding="utf-8")
    assert "tiny_llama with random weights" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "40"], "--steps 40: no request has more than"),
        (["--steps", "0"], "--steps 0: give at least 1"),
        (["--steps", "3", "--request", "9"], "--request 9: the load has requests 0 to 5"),
        (["--weights-seed", "-1"], "--weights-seed -1: give 0 or more"),
        (["--mass", "1.2"], "--mass 1.2: a share"),
        (["--mass", "0.5", "--pages", "3"], "--mass and --pages: both"),
        (["--heads", "both"], "--heads both: not one of mean, any, apart"),
        (["--device", "tpu"], "--device tpu"),
        (["--set", "engine.num_gpu_blocks_override=null"], "engine.num_gpu_blocks_override: missing"),
        (["--set", "model=llama-3.1-70b"], "GiB of weights in float32"),
        (["--set", "model=mixtral-8x7b"], "experts"),
        (["--set", "kv_access={pattern: full, layer_groups: 4}"], "kv_access.pattern: decode steps read"),
    ],
)
def test_what_cannot_be_recorded_is_said_in_one_line(scenario, tmp_path, capsys, options, message):
    out = tmp_path / "reads.parquet"
    assert run_command(["access", "record", scenario, "--out", str(out), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]  # nothing half-written


def test_files_are_named_where_they_are_wrong(scenario, tmp_path, capsys):
    recorded = tmp_path / "reads.csv"
    for arguments, message in (
        (["record", scenario, "--out", str(recorded)], "is a .parquet or .jsonl file"),
        (
            ["record", "nowhere.yaml", "--out", "x.parquet"],
            "nowhere.yaml: no such file, nor a shipped scenario",
        ),
        (["stats", str(tmp_path / "none.parquet")], "no such file"),
        (
            ["record-hf", str(tmp_path), "--text", "none.txt", "--out", "x.parquet"],
            "--text none.txt: not a text",
        ),
        (["record-hf", "none", "--text", scenario, "--out", "x.parquet"], "none: no such folder"),
        (["record-hf", "none", "--text", scenario, "--out", "x.csv"], "is a .parquet or .jsonl file"),
    ):
        assert run_command(["access", *arguments]) == 2
        assert message in capsys.readouterr().err
