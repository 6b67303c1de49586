"""The command line as a user meets it: exit codes, one line per mistake, files whole or not at all, same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from sim import cli
from sim.cli import run_command

SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "cluster": {"replicas": 2},
    "workload": {
        "input_tokens": {"uniform": [50, 900]},
        "output_tokens": {"lognormal": {"mean": 80, "sigma": 0.7, "low": 1, "high": 400}},
        "request_rate": 20,
        "num_requests": 120,
    },
    "slo": {"ttft_ms": 500, "tpot_ms": 30},
    "seed": 5,
}


@pytest.fixture
def scenario(tmp_path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return path


def test_run_writes_a_run_directory(scenario, tmp_path, capsys):
    out = tmp_path / "out"
    assert run_command(["run", str(scenario), "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)  # one document and nothing else
    assert "wrote" in captured.err
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["completed"] == 120
    assert summary["backend"] == "sim"
    assert set(summary["sim"]["stages_ms"]) == {
        "tokenise",
        "queue",
        "prefix_load",
        "prefill",
        "decode",
        "preempted",
    }
    lock = yaml.safe_load((out / "scenario.lock.yaml").read_text())
    assert lock["scenario"]["seed"] == 5
    assert lock["profile"]["hash"] == summary["sim"]["profile"]["hash"]
    requests = pq.read_table(out / "requests.parquet").to_pydict()
    assert len(requests["request_id"]) == 120
    for row in zip(
        *(
            requests[f"stage_{s}_s"]
            for s in ("tokenise", "queue", "prefix_load", "prefill", "decode", "preempted")
        ),
        requests["e2el_s"],
        strict=True,
    ):
        assert sum(row[:-1]) == pytest.approx(row[-1], abs=1e-9)
    assert sum(requests["output_tokens"]) == summary["total_output_tokens"]
    timeline = pq.read_table(out / "timeline.parquet").to_pydict()
    assert min(timeline["waiting"]) >= 0
    assert max(timeline["running"]) <= 256
    assert sorted(p.name for p in out.iterdir()) == [
        "requests.parquet",
        "scenario.lock.yaml",
        "summary.json",
        "timeline.parquet",
    ]


@pytest.mark.parametrize(("max_model_len", "refused", "code"), [(3000, 0, 0), (1000, 1, 0), (50, 3, 1)])
def test_a_run_that_serves_nobody_says_no_and_keeps_its_files(
    scenario, tmp_path, capsys, max_model_len, refused, code
):
    trace, out = tmp_path / "trace.csv", tmp_path / "out"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,50,5\n0,900,9\n1,2000,6\n")
    sets = (
        "workload.request_rate=null",
        "workload.num_requests=null",
        f"engine.max_model_len={max_model_len}",
    )
    options = [text for one in sets for text in ("--set", one)]
    command = ["run", str(scenario), "--trace", str(trace), *options, "--out", str(out), "--json"]
    assert run_command(command) == code
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["failed"] == refused
    said = [f"wrote {out}"]
    said += ["all 3 requests were refused: 3 exceeds_max_model_len"] if code else []
    assert captured.err.splitlines() == said


def test_the_locked_scenario_reproduces_the_run(scenario, tmp_path, capsys):
    assert run_command(["run", str(scenario), "--out", str(tmp_path / "a")]) == 0
    locked = yaml.safe_load((tmp_path / "a" / "scenario.lock.yaml").read_text())["scenario"]
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(locked))
    assert run_command(["run", str(again), "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a" / "requests.parquet").read_bytes() == (
        tmp_path / "b" / "requests.parquet"
    ).read_bytes()


def test_the_same_seed_gives_the_same_bytes_but_for_the_date(scenario, tmp_path, capsys):
    for name, extra in (
        ("a", []),
        ("b", []),
        ("slow", ["--set", "simulation.fast_forward=false"]),
        ("c", ["--seed", "6"]),
    ):
        assert run_command(["run", str(scenario), "--out", str(tmp_path / name), *extra]) == 0

    def content(name: str) -> dict[str, bytes]:
        files = {p.name: p.read_bytes() for p in (tmp_path / name).iterdir()}
        summary = json.loads(files["summary.json"])
        del summary["date"]
        files["summary.json"] = json.dumps(summary).encode()
        return files

    assert content("a") == content("b")
    slow = content("slow")
    for name in ("requests.parquet", "timeline.parquet", "summary.json"):
        assert content("a")[name] == slow[name]
    assert content("a")["requests.parquet"] != content("c")["requests.parquet"]


def test_an_existing_directory_is_replaced_only_if_it_is_ours(scenario, tmp_path, capsys):
    out = tmp_path / "out"
    for _ in range(2):
        assert run_command(["run", str(scenario), "--out", str(out)]) == 0
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious.txt").write_text("mine")
    assert run_command(["run", str(scenario), "--out", str(foreign)]) == 2
    assert "precious.txt" in capsys.readouterr().err
    assert [p.name for p in foreign.iterdir()] == ["precious.txt"]
    assert run_command(["run", str(scenario), "--out", str(foreign / "precious.txt")]) == 2
    assert run_command(["run", str(scenario), "--out", str(foreign / "precious.txt" / "below")]) == 2


@pytest.mark.parametrize(
    "name", ["notes.txt", "analysis/a.py", "arms/mine/precious.txt", "arms/summary.json"]
)
def test_a_users_files_in_a_result_directory_are_never_lost(scenario, tmp_path, capsys, name):
    out = tmp_path / "out"
    assert run_command(["run", str(scenario), "--out", str(out)]) == 0
    mine = out / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    assert run_command(["run", str(scenario), "--out", str(out)]) == 2
    assert "has other files in it" in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_bad_input(scenario, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert run_command(["run", str(scenario), "--out", str(tmp_path / "out")]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_a_lock_file_is_a_scenario(scenario, tmp_path, capsys):
    assert run_command(["run", str(scenario), "--out", str(tmp_path / "a"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run_command(["run", str(tmp_path / "a" / "scenario.lock.yaml"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**first, "date": None} == {**again, "date": None}


def test_a_trace_replaces_the_workloads_own_source(scenario, tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,50,5\n1,60,6\n")
    assert (
        run_command(
            ["run", str(scenario), "--trace", str(trace), "--set", "workload.num_requests=2", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["total_input_tokens"] == 110
    both = ["run", str(scenario), "--trace", str(trace), "--set", "workload.trace=azure-conv"]
    assert run_command(both) == 2
    assert "give one" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run", "{s}"], ["--help"], ["schema"], ["run", "{s}", "--json"]])
def test_a_reader_that_leaves_early_is_no_error(scenario, arguments):
    command = [
        sys.executable,
        "-c",
        "from sim.cli import main; main()",
        *(a.replace("{s}", str(scenario)) for a in arguments),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait() == 0
    assert b"Traceback" not in errors


def test_a_full_disk_on_standard_output_is_one_line(scenario):
    command = [sys.executable, "-c", "from sim.cli import main; main()", "run", str(scenario)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_failing_run_leaves_nothing_behind(scenario, tmp_path, capsys, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("sim.commands.run.write_run", fail)
    before = sorted(tmp_path.iterdir())
    assert run_command(["run", str(scenario), "--out", str(tmp_path / "out")]) == 3
    assert sorted(tmp_path.iterdir()) == before
    assert "fault of servetwin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "{s}", "--set", "engine.max_num_seq=1"], "did you mean max_num_seqs?"),
        (["run", "{s}", "--set", "model=lama-3"], "llama"),
        (["run", "{s}", "--set", "hardware.gpu=h900"], "h900"),
        (["run", "{s}", "--set", "model=deepseek-v3"], "MLA"),
        (
            ["run", "{s}", "--set", "model=llama-3.1-70b", "--set", "hardware.gpu=l40s"],
            "tensor_parallel_size",
        ),
        (["run", "{s}", "--set", "hardware.tensor_parallel_size=3"], "tensor_parallel_size"),
        (
            [
                "run",
                "{s}",
                "--set",
                "workload.trace=none.csv",
                "--set",
                "workload.input_tokens=null",
                "--set",
                "workload.output_tokens=null",
            ],
            "none.csv",
        ),
        (["run", "{s}", "--trace", "none.csv"], "none.csv"),
        (["run", "none.yaml"], "no such file"),
        (["run", "{s}", "--seed", "x"], "seed"),
        (["run", "{s}", "--sed", "1"], "sed"),
        (["run", "{s}", "--report"], "--out"),
        (["run"], "SCENARIO"),
        (["fly"], "fly"),
        (["init", "{s}"], "exists"),
        (["init", "--from-vllm", "vllm serve"], "names no model"),
        (["validate", "steps", "none"], "none"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(scenario, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert run_command([a.replace("{s}", str(scenario)) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert sorted(tmp_path.iterdir()) == before


def test_interrupted_is_130_and_a_fault_is_3(scenario, capsys, monkeypatch):
    def raising(error: type[BaseException]):
        def command(*_: object, **__: object) -> None:
            raise error

        return command

    monkeypatch.setattr(cli, "build_app", lambda **_: raising(KeyboardInterrupt))
    assert run_command(["run"]) == 130
    monkeypatch.setattr(cli, "build_app", lambda **_: raising(RuntimeError))
    assert run_command(["run"]) == 3
    assert "report it" in capsys.readouterr().err


def test_an_interrupt_in_the_middle_is_130_and_leaves_nothing(scenario, tmp_path, capsys, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.engine.cluster.Client", interrupted)
    before = sorted(tmp_path.iterdir())
    assert run_command(["run", str(scenario), "--out", str(tmp_path / "out")]) == 130
    assert sorted(tmp_path.iterdir()) == before


def test_a_short_run_imports_no_heavy_library(scenario):
    """Start-up is part of the answer: a run without files needs no pyarrow, Plotly or scipy.stats."""
    code = (
        "import sys; from sim.cli import run_command; code = run_command(sys.argv[1:]);"
        "heavy = {'pyarrow', 'scipy.stats', 'plotly', 'pandas'} & set(sys.modules);"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(scenario), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completed"] == 120
    assert done.stderr == ""


def test_init_then_run(tmp_path, capsys):
    path = tmp_path / "new.yaml"
    assert run_command(["init", str(path)]) == 0
    assert run_command(["run", str(path), "--set", "workload.num_requests=30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 30


def test_schema_is_a_json_schema(capsys):
    assert run_command(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["required"]) == {"model", "hardware", "workload"}


def test_the_python_api_is_pinned():
    import sim

    assert sim.__all__ == ["Result", "Scenario", "compare", "load_scenario", "plan", "simulate"]
    scenario = sim.load_scenario(SCENARIO, ["workload.num_requests=10"])
    assert sim.simulate(scenario).summary["completed"] == 10
