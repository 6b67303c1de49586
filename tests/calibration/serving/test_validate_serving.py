"""The command: a small table of measured runs in, scores and files out; exit codes; bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from calibration.serving.measured_run import METRICS
from calibration.serving.readers.silicon import read
from calibration.serving.scores import RULES
from calibration.serving.validation import NOTHING_SERVED, validate
from calibration.serving.validation_text import validation_lines
from sim.cli import run_command
from sim.profile import load_profile
from tests.calibration.serving.client_files import SCENARIO, known_run, write_vllm

ROW = {
    "row_id": "first",
    "curve_id": "curve",
    "source_class": "inferencex",
    "image": "one",
    "backend": "vllm",
    "system": "h100_sxm",
    "model": "llama-3.1-8b",
    "model_path": "meta-llama/Llama-3.1-8B",
    "precision": "bf16",
    "gemm_quant": "",
    "in_kernel_scope": "True",
    "isl": "64",
    "osl": "8",
    "concurrency": "2",
    "tp": "1",
    "attn_dp": "1",
    "moe_tp": "1",
    "moe_ep": "1",
    "source": "a client",
    "ttft_ms": "10",
    "tpot_ms": "12",
    "flag": "",
}


@pytest.fixture
def table(tmp_path):
    """Write a table of runs, each the usual one but for what is said; gives its path."""

    def write(*rows: dict[str, str], name: str = "table.csv"):
        path = tmp_path / name
        path.write_text(
            "\n".join([",".join(ROW), *(",".join({**ROW, **row}.values()) for row in rows)]) + "\n",
            encoding="utf-8",
        )
        return path

    return write


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = run_command(["validate", "serving", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def document(capsys, *arguments: object, code: int = 0) -> dict:
    found, out, _ = run(capsys, *arguments, "--json")
    assert found == code
    return json.loads(out)


def predicted(path, metric: str) -> float:
    """What the twin says of the first run of a table."""
    return next(pair.predicted for pair in validate([], read(path)).pairs if pair.metric == metric)


TWO = ({}, {"row_id": "second", "concurrency": "4", "model": "qwen3-8b", "curve_id": "other"})


def test_scores_by_metric_and_group(table, capsys):
    path = table(*TWO)
    found = document(capsys, path)
    assert (found["data"], found["runs"], found["met"], found["rules"]) == (["table.csv"], 2, None, RULES)
    assert list(found["scores"]) == [m for m in METRICS if m in ("mean_ttft_ms", "mean_tpot_ms")]
    tpot = found["scores"]["mean_tpot_ms"]
    assert tpot["count"] == 2
    assert [group["labels"] for group in tpot["groups"]] == [
        {"system": "h100_sxm", "model": "llama-3.1-8b"},
        {"system": "h100_sxm", "model": "qwen3-8b"},
    ]
    first = predicted(path, "mean_tpot_ms") / 12 - 1
    assert tpot["groups"][0]["bias"] == pytest.approx(first)
    assert tpot["mape"] == pytest.approx(sum(group["mape"] for group in tpot["groups"]) / 2)
    assert tpot["worst"]["run"] in ("first", "second")
    assert {one["run"] for one in found["worst"]} == {"first", "second"}


def test_a_measurement_as_predicted_has_no_error(table, capsys):
    values = {name: f"{predicted(table({}), f'mean_{name}')!r}" for name in ("ttft_ms", "tpot_ms")}
    found = document(
        capsys, table(values), "--tolerance", "mean_tpot_ms:worst=0", "--tolerance", "mean_ttft_ms=0"
    )
    assert found["met"]
    assert [score["mape"] for score in found["scores"].values()] == [0, 0]


def test_text_says_the_same(table, capsys):
    path = table(*TWO, {"row_id": "odd", "flag": "ttft_dominates(queue/KV-limited);", "concurrency": "8"})
    scores = document(capsys, path)["scores"]
    code, out, err = run(capsys, path)
    assert (code, err.strip()) == (0, "")  # a bar shows after two seconds
    lines = out.splitlines()
    assert lines[0] == "3 runs of table.csv"
    all_of_it = next(line for line in lines if line.startswith("mean_tpot_ms")).split()
    shown = scores["mean_tpot_ms"]
    assert all_of_it[1:-2] == [
        "2",
        *(f"{shown[key]:.1%}" for key in ("mape", "p50_abs_pct_err", "p90_abs_pct_err", "p99_abs_pct_err")),
        f"{shown['bias']:+.1%}",
        f"{shown['worst']['error']:+.1%}",
    ]
    assert all_of_it[-2:] == [f"{shown['covered']:.1%}", f"{shown['half_width']:.1%}"]
    assert any(line.startswith("h100_sxm, qwen3-8b") for line in lines)
    assert "scored apart: limited by KV memory: TTFT dominates" in lines
    worst = next(line for line in lines[lines.index("") :] if line.endswith(("first", "second")))
    assert worst.split()[2] in ("10", "12", "12.0")


@pytest.mark.parametrize(
    ("limit", "code", "said"), [("1000%", 0, "tolerance met"), ("0.001%", 1, "tolerance NOT met")]
)
def test_a_tolerance_is_a_gate(table, capsys, limit, code, said):
    path = table(*TWO)
    assert document(capsys, path, "--tolerance", f"mean_tpot_ms:p90={limit}", code=code)["met"] is (code == 0)
    found, out, _ = run(capsys, path, "--tolerance", f"mean_tpot_ms:p90={limit}")
    assert found == code
    assert f"{said}: mean_tpot_ms p90" in out


def test_what_stands_apart_enters_no_score_and_no_gate(table, capsys):
    odd = {
        "row_id": "odd",
        "concurrency": "8",
        "ttft_ms": "100000",
        "tpot_ms": "0.001",
        "flag": "ttft_dominates(queue/KV-limited);",
    }
    path = table(*TWO, odd)
    found = document(capsys, path, "--tolerance", "mean_tpot_ms=1000%")
    assert found["scores"]["mean_tpot_ms"]["count"] == 2
    assert [(one["reason"], one["metric"], one["count"]) for one in found["apart"]] == [
        ("limited by KV memory: TTFT dominates", metric, 1) for metric in ("mean_ttft_ms", "mean_tpot_ms")
    ]
    assert found["apart"][1]["mape"] > 100
    code, _, err = run(capsys, table(odd), "--tolerance", "mean_tpot_ms=0.5")
    assert code == 1  # nothing was scored, and no limit lets that pass
    assert err == ""


def test_groups_by_labels_that_are_asked_for(table, capsys):
    path = table(*TWO, {"row_id": "third", "concurrency": "16"})
    found = document(
        capsys, path, "--by", "concurrency", "--by", "system,precision", "--metric", "mean_tpot_ms"
    )
    assert list(found["scores"]) == ["mean_tpot_ms"]
    assert found["by"] == [["concurrency"], ["system", "precision"]]
    assert [group["labels"] for group in found["scores"]["mean_tpot_ms"]["groups"]] == [
        {"concurrency": 2},
        {"concurrency": 4},
        {"concurrency": 16},
        {"system": "h100_sxm", "precision": "bf16"},
    ]


def test_files_hold_every_prediction(table, tmp_path, capsys):
    path = table(*TWO, {"row_id": "odd", "flag": "ttft_dominates(queue/KV-limited);", "concurrency": "8"})
    out = tmp_path / "out"
    code, printed, said = run(capsys, path, "--out", out, "--json", "--report")
    assert code == 0
    assert f"wrote {out}" in said
    assert sorted(file.name for file in out.iterdir()) == [
        "predictions.parquet",
        "report.html",
        "scores.json",
    ]
    assert (out / "scores.json").read_text() == printed
    rows = pq.read_table(out / "predictions.parquet").to_pylist()
    assert [(row["run"], row["metric"]) for row in rows] == [
        (run, metric) for run in ("first", "second", "odd") for metric in ("mean_tpot_ms", "mean_ttft_ms")
    ]
    first, last = rows[0], rows[-1]
    assert (first["curve"], first["measured"], first["model"], first["concurrency"]) == (
        "curve",
        12,
        "llama-3.1-8b",
        2,
    )
    assert first["error"] == first["predicted"] / 12 - 1
    assert first["apart"] is None
    error = next(e for e in load_profile("h100_sxm").errors_for(moe=False) if e.metric == "mean_tpot_ms")
    assert (first["low"], first["high"]) == error.interval(first["predicted"])
    assert last["apart"] == "limited by KV memory: TTFT dominates"
    assert {row["profile_hash"] for row in rows} == {load_profile("h100_sxm").content_hash}
    before = [(out / name).read_bytes() for name in ("predictions.parquet", "scores.json")]
    assert run(capsys, path, "--out", out)[0] == 0  # ours, so it is replaced; the same bytes again
    assert [(out / name).read_bytes() for name in ("predictions.parquet", "scores.json")] == before
    assert not (out / "report.html").exists()


def test_a_profile_stands_in_for_its_device_alone(table, tmp_path, capsys):
    own = load_profile("h100_sxm")
    slow = own.with_host(own.host.model_copy(update={"base_s": own.host.base_s + 0.1}))
    (tmp_path / "slow.json").write_text(slow.to_json(), encoding="utf-8")
    path = table(*TWO, {"row_id": "elsewhere", "system": "b200_sxm"})
    found = document(capsys, path, "--profile", tmp_path / "slow.json")
    assert found["profile"] == f"h100_sxm {slow.content_hash}"
    assert found["profile_hashes"] == [slow.content_hash] != [own.content_hash]
    assert found["left_out"] == [
        {"run": "elsewhere", "metric": None, "why": "not of h100_sxm, whose profile was given"}
    ]
    first = next(one for one in found["worst"] if one["metric"] == "mean_tpot_ms" and one["run"] == "first")
    assert first["predicted"] == pytest.approx(predicted(table({}), "mean_tpot_ms") + 100, abs=1)


def test_what_cannot_be_predicted_is_left_out_and_named(table, capsys):
    vast = {"row_id": "vast", "model": "llama-3.1-70b", "tpot_ms": "80"}
    path = table(*TWO, vast, {"row_id": "odd", "system": "x9000"})
    found = document(capsys, path)
    assert found["scores"]["mean_tpot_ms"]["count"] == 2
    assert [one["run"] for one in found["left_out"]] == ["vast", "odd"]
    assert "no profile x9000" in found["left_out"][1]["why"]
    assert "left out: hardware: no profile x9000" in run(capsys, path)[1]


def test_what_is_never_served_is_left_out(table, capsys):
    found = document(capsys, table({"osl": "1"}))  # one token: no time between tokens
    assert found["left_out"] == [{"run": "first", "metric": "mean_tpot_ms", "why": NOTHING_SERVED}]
    assert list(found["scores"]) == ["mean_ttft_ms"]


def test_intervals_are_judged_where_there_are_any(table):
    found = validate(["t"], read(table(*TWO)))
    assert "in interval" in validation_lines(found)
    found = replace(found, pairs=tuple(replace(pair, interval=None) for pair in found.pairs))
    assert "in interval" not in validation_lines(found)
    some = tuple(
        replace(pair, interval=(0.0, 2 * pair.predicted)) if pair.metric == "mean_tpot_ms" else pair
        for pair in found.pairs
    )
    lines = validation_lines(replace(found, pairs=some)).splitlines()
    head = next(line for line in lines if line.startswith("all"))
    assert head.endswith("in interval  half-width")
    inside = sum(pair.measured <= 2 * pair.predicted for pair in some if pair.metric == "mean_tpot_ms")
    assert next(line for line in lines if line.startswith("mean_tpot_ms")).split()[-2:] == [
        f"{inside / 2:.1%}",
        "100.0%",
    ]
    assert not next(line for line in lines if line.startswith("mean_ttft_ms")).endswith("100.0%")


@pytest.fixture
def client_results(tmp_path):
    """A folder with a result of `vllm bench serve`, and another one whose requests all failed; the scenario beside."""
    (tmp_path / "service.yaml").write_text(json.dumps(SCENARIO), encoding="utf-8")
    results = tmp_path / "results"
    for name, failed in (("good", ()), ("failed", range(12))):
        (results / name).mkdir(parents=True)
        write_vllm(results / name, known_run(count=12, failed=failed))
    return results


def test_results_of_a_client_are_scored_and_what_failed_is_named(client_results, capsys):
    found = document(capsys, client_results, "--scenario", client_results.parent / "service.yaml")
    assert found["runs"] == 1
    assert {"mean_ttft_ms", "p99_e2el_ms", "output_throughput"} <= set(found["scores"])
    (left,) = found["left_out"]
    assert (left["run"], left["metric"]) == ("failed/result.json", None)
    assert "failed" in left["why"]


@pytest.mark.parametrize("own", [False, True])
def test_results_of_a_client_need_a_scenario(client_results, tmp_path, capsys, own):
    profile = tmp_path / "h100.json"
    profile.write_text(load_profile("h100_sxm").to_json(), encoding="utf-8")
    for data in (client_results, client_results / "good"):
        code, out, err = run(capsys, data, *(["--profile", profile] if own else []))
        assert (code, out) == (2, "")
        assert "give a scenario with model, hardware and engine" in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs measured runs"),
        (["nowhere.csv"], "nowhere.csv"),
        (["table.csv", "--by", "colour"], "--by colour: no run has this label; there are concurrency, data"),
        (["table.csv", "--metric", "speed"], "--metric speed: no such metric"),
        (
            ["table.csv", "--metric", "p99_ttft_ms"],
            "no run has it measured; measured are mean_ttft_ms, mean_tpot_ms",
        ),
        (["table.csv", "--tolerance", "mean_tpot_ms"], "write METRIC=VALUE"),
        (["table.csv", "--tolerance", "p99_ttft_ms=5%"], "--tolerance p99_ttft_ms: no run has it measured"),
        (
            ["table.csv", "--metric", "mean_ttft_ms", "--tolerance", "mean_tpot_ms=5%"],
            "not among the metrics",
        ),
        (["table.csv", "--report"], "--report: needs --out DIR"),
        (["table.csv", "--out", "table.csv"], "is a file"),
        (["table.csv", "--out", "."], "has other files in it"),
        (["table.csv", "--profile", "none.json"], "none.json: cannot be read"),
        (["table.csv", "--scenario", "none.yaml"], "none.yaml: no such file"),
        (["table.csv", "--colour"], "--colour"),
    ],
)
def test_bad_input_is_one_line(table, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    table({})
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
