"""Whatever is wrong with result files is one line that names the file."""

import json

import pyarrow as pa
import pytest

from dashboards.report import render, write_report
from tests.dashboards.directories import (
    comparison,
    plan,
    requests_table,
    write_comparison,
    write_run,
    write_table,
)
from workloads.errors import ConfigError

FILES = ("scenario.lock.yaml", "summary.json", "requests.parquet", "timeline.parquet")


def problem(directory) -> str:
    with pytest.raises(ConfigError) as caught:
        render(directory)
    assert not (directory / "report.html").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES[:1] + FILES[2:])
def test_missing_file(tmp_path, name):
    directory = write_run(tmp_path / "run")
    (directory / name).unlink()
    assert f"{name}: no such file" in problem(directory)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1, 2]", b"{", b'"text"', b"{a: [}"])
def test_garbled_file(tmp_path, name, content):
    directory = write_run(tmp_path / "run")
    (directory / name).write_bytes(content)
    assert name in problem(directory)


@pytest.mark.parametrize("name", FILES[1:])
def test_truncated_file(tmp_path, name):
    directory = write_run(tmp_path / "run")
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[: len(content) // 2])
    assert name in problem(directory)


def test_limit_that_is_no_number(tmp_path):
    directory = write_run(tmp_path / "run", slo={"ttft_ms": "soon"})
    assert "scenario.lock.yaml: scenario.slo.ttft_ms: " in problem(directory)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_id": 3}, "model_id"),
        ({"completed": "many"}, "completed"),
        ({"sim": []}, "sim"),
        ({"sim": {"profile": {"name": "p"}}}, "sim.num_gpu_blocks"),
        ({"sim": {"profile": "p", "num_gpu_blocks": 3}}, "sim.profile"),
    ],
)
def test_summary_of_the_wrong_shape(tmp_path, change, field):
    directory = write_run(tmp_path / "run")
    path = directory / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert f"summary.json: {field}: " in problem(directory)


def test_numbers_that_are_none(tmp_path):
    directory = write_run(tmp_path / "run")
    path = directory / "summary.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"p99_ttft_ms": float("nan"), "mean_ttft_ms": None})
    )
    assert "nan" not in render(directory).read_text(encoding="utf-8").partition("<script>")[0]


def test_table_without_a_column(tmp_path):
    directory = write_run(tmp_path / "run")
    table = requests_table(3)
    del table["ttft_s"], table["e2el_s"]
    write_table(table, directory / "requests.parquet")
    assert "requests.parquet: has no column ttft_s, e2el_s" in problem(directory)


def test_table_with_words_for_numbers(tmp_path):
    directory = write_run(tmp_path / "run")
    write_table(requests_table(2) | {"ttft_s": pa.array(["soon", "later"])}, directory / "requests.parquet")
    assert "requests.parquet: cannot be read" in problem(directory)


def test_table_of_another_length_than_its_columns_say(tmp_path):
    directory = write_run(tmp_path / "run")
    nested = pa.array([[1.0], [2.0]])
    write_table(requests_table(2) | {"ttft_s": nested}, directory / "requests.parquet")
    assert "requests.parquet" in problem(directory)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"arms": []}, "arms: is empty"),
        ({"arms": 3}, "arms: "),
        ({"verdict": None}, "verdict: "),
        ({"arms": [{"name": "a", "metrics": {}}] * 2}, "names must differ"),
        ({"arms": [{"name": "a", "metrics": {}, "directory": "../elsewhere"}]}, "is not inside"),
        ({"arms": [{"name": "a", "metrics": {}, "directory": "/etc"}]}, "is not inside"),
        ({"arms": [{"name": "../../x", "metrics": {}}]}, "is not inside"),
        ({"arms": [{"name": "a", "metrics": {}, "directory": "arms/9"}]}, "no such directory"),
        ({"differences": [{"arm": "a"}]}, "differences.0.metric"),
    ],
)
def test_comparison_of_the_wrong_shape(tmp_path, document, message):
    directory = write_comparison(tmp_path / "c")
    (directory / "comparison.json").write_text(json.dumps(comparison() | document))
    assert message in problem(directory)


@pytest.mark.parametrize(
    "change", [{"curve": 3}, {"curve": [{"replicas": 1}]}, {"slo": ["x"]}, {"replicas": "two"}]
)
def test_plan_of_the_wrong_shape(tmp_path, change):
    (tmp_path / "plan.json").write_text(json.dumps(plan() | change))
    assert "plan.json: " in problem(tmp_path)


def test_directories_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="no such directory"):
        write_report([tmp_path / "none"], tmp_path / "x.html")
    with pytest.raises(ConfigError, match="holds no results"):
        write_report([tmp_path], tmp_path / "x.html")
    run, other = write_run(tmp_path / "run"), write_comparison(tmp_path / "c")
    with pytest.raises(ConfigError, match="only runs go side by side"):
        write_report([run, other], tmp_path / "x.html")
    with pytest.raises(ConfigError, match="given twice"):
        write_report([run, run], tmp_path / "x.html")
    with pytest.raises(ConfigError, match="no such directory"):
        write_report([run, tmp_path / "none"], tmp_path / "x.html")
