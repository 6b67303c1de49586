"""The comparison with peers: what they are told, how they answer, who is scored on what; with stand-ins for them."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.predict import Prediction
from sim.scenario.reading import load_scenario
from tests.data import shared_data
from tests.fidelity import peers
from tests.fidelity.peers import (
    DRIVER,
    METRICS,
    PEERS,
    ask,
    main,
    measured_runs,
    notes_of,
    predictions_of,
    question_of,
    read_predictions,
    shared_pairs,
    table,
    write_predictions,
)
from workloads.errors import InputError

AICONFIGURATOR = {
    "cli/api.py": """
import types
def cli_estimate(**passed):
    print("peers talk")
    if passed["batch_size"] > 8:
        raise RuntimeError("does not\\n fit")
    return types.SimpleNamespace(ttft=10.0 * passed["tp_size"], tpot=2.0 * passed["batch_size"])
""",
    "sdk/perf_database.py": "def get_latest_database_version(system, backend): return f'{backend} of {system}'\n",
}
AISIMULATE = {
    "sweeper/replay.py": """
import types
ReplaySpec = BackendDeploymentSpec = types.SimpleNamespace
""",
    "runner.py": """
import types
class EngineReplayRunnerFactory:
    def create(self, number):
        return types.SimpleNamespace(run=self.run, close=lambda: None)
    def run(self, spec):
        workload = spec.workload
        done = workload["request_count"] - (spec.concurrency > 8)
        times = {"mean_ttft_ms": 1.0 + workload["random_seed"], "mean_tpot_ms": 2.0 * spec.concurrency}
        return types.SimpleNamespace(metrics={"completed_requests": done, **times})
""",
    "sdk/perf_database.py": "def get_latest_database_version(system, backend): return '1'\n",
}
STAND_INS = {"aiconfigurator": AICONFIGURATOR, "aisimulate": AISIMULATE}


def run_of(model="llama-3.1-70b", concurrency=4, measured=(8.0, 40.0), **hardware):
    scenario = load_scenario(
        {
            "model": model,
            "hardware": {"gpu": "h100_sxm", "tensor_parallel_size": 4, **hardware},
            "engine": {"max_num_seqs": concurrency, "max_model_len": 2304},
            "workload": {
                "input_tokens": {"uniform": [819, 1024]},
                "output_tokens": 512,
                "max_concurrency": concurrency,
                "num_requests": 10 * concurrency,
            },
        }
    )
    part = Part(dict(zip(METRICS, measured, strict=True)))
    labels = {"system": "h100_sxm", "model": model, "concurrency": concurrency}
    return MeasuredRun(f"{model}-{concurrency}", model, labels, scenario, (part,))


RUNS = [
    run_of(weight_dtype="fp8"),
    run_of("gpt-oss-120b", 8),
    run_of(concurrency=16),
    run_of("qwen3-235b-a22b", 2, weight_dtype="fp8"),
]


def install(folder, name):
    """A package of that name, where the driver will find it first."""
    for path, text in STAND_INS[name].items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    for name in STAND_INS:
        install(tmp_path, name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def absent(tmp_path, monkeypatch):
    for name in PEERS:
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("processes", [1, 3])
def test_answers_come_in_the_order_of_the_questions(processes):
    said = ask("aiconfigurator", sys.executable, list(map(question_of, RUNS)), processes)["answers"]
    assert [one.get("tpot_ms") for one in said] == [8.0, 16.0, None, 4.0]
    assert said[2] == {"refused": "RuntimeError: does not fit"}


@pytest.mark.usefixtures("stand_ins")
def test_a_peer_is_told_the_scenario():
    dense, experts, _, checkpoint = [
        one.get("passed")
        for one in ask("aiconfigurator", sys.executable, list(map(question_of, RUNS)))["answers"]
    ]
    assert dense["isl"] == 1024
    assert dense["osl"] == 512
    assert (dense["batch_size"], dense["tp_size"], dense["max_seq_len"]) == (4, 4, 2304)
    assert (dense["gemm_quant_mode"], dense["kvcache_quant_mode"]) == ("fp8", "bfloat16")
    assert "moe_tp_size" not in dense
    assert (experts["moe_tp_size"], experts["moe_ep_size"]) == (4, 1)
    assert "gemm_quant_mode" not in experts, "gpt-oss brings its own number formats"
    assert checkpoint["model_path"].endswith("-FP8")
    assert "moe_quant_mode" not in checkpoint


@pytest.mark.usefixtures("stand_ins")
def test_a_replay_is_of_the_same_closed_loop_over_as_many_seeds():
    [said, _, cut, _] = ask("aisimulate", sys.executable, list(map(question_of, RUNS)))["answers"]
    seeds = question_of(RUNS[0])["seeds"]
    assert seeds == 10
    assert said["ttft_ms"] == pytest.approx(1.0 + np.arange(seeds).mean())
    assert said["passed"]["request_count"] == 40
    assert said["passed"]["random_range_ratio"] == pytest.approx(0.8, abs=1e-3)
    assert said["passed"]["enable_prefix_caching"] is False
    assert cut == {"refused": "ValueError: 159 of 160 requests completed"}


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("peer", PEERS)
def test_an_absent_peer_says_so(peer):
    assert ask(peer, sys.executable, [question_of(RUNS[0])]) == {"absent": "not here"}


@pytest.mark.parametrize(
    ("python", "message"),
    [("/no/such/python", "cannot be run"), ("/bin/false", "ended with 1")],
)
def test_an_interpreter_that_does_not_work_is_one_line(python, message):
    with pytest.raises(InputError, match=message) as error:
        ask("aisimulate", python, [question_of(RUNS[0])])
    assert "\n" not in str(error.value)


def test_the_driver_needs_nothing_of_the_project():
    text = DRIVER.read_text(encoding="utf-8")
    assert not [
        name for name in ("calibration", "sim", "workloads", "tests", "numpy") if f"\nfrom {name}" in text
    ]


def predicted(*values):
    """TPOT and TTFT of each run; None where there is none."""
    return [
        Prediction(run, ({} if value is None else dict(zip(METRICS, value, strict=True)),), "", 0)
        for run, value in zip(RUNS, values, strict=True)
    ]


def test_tools_are_scored_on_the_runs_that_all_answer():
    tools = {
        "ours": predicted((8.8, 40.0), (4.0, 40.0), (8.0, 40.0), None),
        "theirs": predicted((6.4, 20.0), (8.0, 40.0), None, (8.0, 40.0)),
    }
    pairs = shared_pairs(tools, "mean_tpot_ms")
    assert (
        [pair.run for pair in pairs["ours"]]
        == [pair.run for pair in pairs["theirs"]]
        == [r.name for r in RUNS[:2]]
    )
    lines = table(tools, "mean_tpot_ms", {"dense": RUNS[:1] + RUNS[2:3], "experts": [RUNS[1], RUNS[3]]})
    assert lines[0] == "| system | model | runs | ours | theirs |"
    assert (
        "| h100_sxm | llama-3.1-70b | 1 | 10.0 / 10.0 / 10.0 / +10.0 | 20.0 / 20.0 / 20.0 / -20.0 |" in lines
    )
    assert "| h100_sxm | gpt-oss-120b | 1 | 50.0 / 50.0 / 50.0 / -50.0 | 0.0 / 0.0 / 0.0 / +0.0 |" in lines
    assert lines[-1].startswith("| all | experts | 1 |")
    assert not any("qwen3" in line for line in lines)


def test_runs_without_a_measurement_have_no_row():
    blind = [replace(RUNS[0], parts=(Part({"mean_tpot_ms": 8.0}),))]
    tools = {"ours": [Prediction(blind[0], ({"mean_tpot_ms": 8.0, "mean_ttft_ms": 1.0},), "", 0)]}
    assert len(table(tools, "mean_tpot_ms", {"dense": blind})) == 4
    assert len(table(tools, "mean_ttft_ms", {"dense": blind})) == 2


def test_predictions_made_elsewhere_come_back(tmp_path):
    made = predicted((8.8, 40.0), (4.0, 41.0), None, (8.0, 40.0))
    write_predictions(made, tmp_path / "p.parquet")
    back = read_predictions(tmp_path / "p.parquet", RUNS)
    assert [one.parts for one in back] == [one.parts for one in made]
    [only] = read_predictions(tmp_path / "p.parquet", [replace(RUNS[0], name="of another day")])
    assert only.parts == ({},)


def test_a_file_of_something_else_is_one_line(tmp_path):
    file = tmp_path / "p.parquet"
    file.write_text("no", encoding="utf-8")
    with pytest.raises(InputError, match=r"p\.parquet: not a predictions"):
        read_predictions(file, RUNS)


def test_notes_say_what_was_passed_and_what_was_refused():
    answers = {
        "version": "9",
        "answers": [
            {"ttft_ms": 1, "tpot_ms": 1, "passed": {"isl": 1, "mode": "agg"}},
            {"ttft_ms": 1, "tpot_ms": 1, "passed": {"isl": 2, "mode": "agg"}},
            {"refused": "no table for s=10.5"},
            {"refused": "no table for s=20"},
        ],
    }
    first, passed, refused = notes_of("aiconfigurator", RUNS, answers)
    assert first.startswith("AIConfigurator 9: ")
    assert passed == "  passed: isl=1|2, mode=agg"
    assert refused == f"  no answer for 2 of 4 runs, first {RUNS[2].name}: no table for s=10.5"
    assert [one.parts[0] for one in predictions_of(RUNS, answers)][2:] == [{}, {}]


@pytest.mark.usefixtures("stand_ins")
def test_two_runs_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        peers, "measured_runs", lambda data: {"dense": RUNS[:1], "mixture of experts": RUNS[1:2]}
    )
    write_predictions(predicted((8.0, 40.0), (8.0, 40.0), None, None), tmp_path / "p.parquet")
    arguments = ["--no-shipped", "--predictions", f"Left out={tmp_path / 'p.parquet'}"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "| Left out | AIConfigurator of no installed distribution | AISimulate" in printed
    assert (
        "| all | mixture of experts | 1 | 0.0 / 0.0 / 0.0 / +0.0 | 100.0 / 100.0 / 100.0 / +100.0 |"
        in printed
    )
    main(arguments)
    assert capsys.readouterr().out == printed


@pytest.mark.usefixtures("absent")
def test_without_peers_one_line_says_how_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "measured_runs", lambda data: {"dense": RUNS[:1]})
    write_predictions(predicted((8.0, 40.0), None, None, None), tmp_path / "p.parquet")
    assert main(["--no-shipped", "--predictions", f"Left out={tmp_path / 'p.parquet'}"]) == 0
    printed = capsys.readouterr().out
    assert "AIConfigurator: not in " in printed
    assert "pip install aiconfigurator, or --peer-python aiconfigurator=PYTHON" in printed
    assert main(["--no-shipped"]) == 2
    assert "nothing to compare" in capsys.readouterr().err


@pytest.mark.usefixtures("stand_ins")
def test_one_release_of_a_peer_is_asked_once(monkeypatch, capsys):
    monkeypatch.setattr(peers, "measured_runs", lambda data: {"dense": RUNS[:1]})
    assert main(["--no-shipped", *["--peer-python", f"aiconfigurator={sys.executable}"] * 2]) == 2
    assert "is there already" in capsys.readouterr().err


def test_an_unknown_peer_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--peer-python", "nobody=python"])
    assert "no such peer; aiconfigurator or aisimulate" in capsys.readouterr().err


@pytest.mark.parametrize("peer", PEERS)
def test_the_installed_peer_answers_two_measured_runs(peer):
    shared_data("silicon_e2e")
    if importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed: {PEERS[peer].install}")
    runs = [found[0] for found in measured_runs(peers.ROOT).values()]
    said = ask(peer, sys.executable, list(map(question_of, runs)))
    assert json.dumps(said).count("tpot_ms") == 2
    assert all(one["ttft_ms"] > one["tpot_ms"] > 0 for one in said["answers"])
