"""One door to measured runs: a file or a folder, known by its content."""

import json

import pytest

from calibration.serving.readers.detect import FORMATS, read_runs
from tests.calibration.serving.client_files import (
    SCENARIO,
    known_run,
    write_aiperf,
    write_guidellm,
    write_inference_perf,
    write_vllm,
)
from tests.data import shared_data
from workloads.errors import InputError


def test_a_folder_of_results_of_several_clients(tmp_path):
    write_vllm(tmp_path / "a", known_run(0))
    write_guidellm(tmp_path / "b" / "deep", known_run(1))
    write_aiperf(tmp_path / "c", known_run(2), summary={"aiperf_version": "0"})
    write_inference_perf(tmp_path / "d", known_run(3), stages=(20, 20))
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / "other.json").write_text("[1, 2]")
    runs = read_runs(tmp_path, SCENARIO)
    assert [(run.name.removeprefix(f"{tmp_path}/"), run.labels["data"]) for run in runs] == [
        ("a/result.json", "vllm bench serve"),
        ("b/deep/benchmarks.json", "guidellm"),
        ("c/profile_export.jsonl", "aiperf"),
        ("d/per_request_lifecycle_metrics.json", "inference-perf"),
    ]
    assert len({run.curve for run in runs}) == 1  # one service: they differ in load alone


def test_a_file_gives_what_its_folder_gives(tmp_path):
    path = write_vllm(tmp_path, known_run())
    (alone,), (within,) = read_runs(path, SCENARIO), read_runs(tmp_path, SCENARIO)
    assert alone.parts[0].measured == within.parts[0].measured
    assert alone.name == within.name == str(path)


def test_runs_of_other_services_share_no_curve(tmp_path):
    path = write_vllm(tmp_path, known_run())
    other = SCENARIO | {"engine": {"max_num_seqs": 8}}
    with_load = SCENARIO | {"workload": {"anything": "gives way"}, "seed": 7}
    curves = [read_runs(path, scenario)[0].curve for scenario in (SCENARIO, other, with_load)]
    assert curves[0] == curves[2] != curves[1]


def test_results_of_a_client_need_a_scenario(tmp_path):
    path = write_vllm(tmp_path, known_run())
    for where in (path, tmp_path):
        with pytest.raises(InputError, match="do not say what they were measured on; give a scenario"):
            read_runs(where)


def test_a_refused_file_of_a_folder_is_an_error_unless_it_is_told(tmp_path):
    write_vllm(tmp_path / "a", known_run())
    failed = write_vllm(tmp_path / "b", known_run(count=4, failed=range(4)))
    with pytest.raises(InputError, match="all 4 requests failed"):
        read_runs(tmp_path, SCENARIO)
    told = []
    runs = read_runs(tmp_path, SCENARIO, on_refused=told.append)
    assert [run.name for run in runs] == [str(tmp_path / "a" / "result.json")]
    assert [str(error).startswith(str(failed)) for error in told] == [True]
    with pytest.raises(InputError, match="all 4 requests failed"):
        read_runs(failed, SCENARIO, on_refused=told.append)
    with pytest.raises(
        InputError, match=r"none of its 1 results can be used; the first: .*all 4 requests failed"
    ):
        read_runs(failed.parent, SCENARIO, on_refused=told.append)


def test_a_wrong_scenario_is_no_refused_file(tmp_path):
    """It would be refused for each file alike: it stops the reading, told or not."""
    write_vllm(tmp_path / "a", known_run())
    with pytest.raises(InputError, match="max_num_sequences"):
        read_runs(tmp_path, SCENARIO | {"engine": {"max_num_sequences": 8}}, on_refused=lambda _: None)


@pytest.mark.parametrize("content", [{"unknown": 1}, None])
def test_what_is_unknown_is_named_with_what_is_known(tmp_path, content):
    if content is not None:
        (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(
        InputError, match=r"no measured runs of a known kind; known are .*results of guidellm"
    ) as refused:
        read_runs(tmp_path, SCENARIO)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="no such file or folder"):
        read_runs(tmp_path / "nothing", SCENARIO)


def test_measured_data_is_known_by_one_format_each():
    """Every part of the measured data that has serving runs, by the reader that was made for it and by no other."""
    root = shared_data()
    expected = {
        ("silicon_e2e", "dense_vllm.csv"): "closed-loop tables",
        ("real_runs_llmservingsim",): "LLMServingSim",
        ("vllm_h100_perrequest", "experiments.csv"): "with their requests",
        ("e2e_openloop", "inference_perf_h100_workloads.csv"): "open-loop stages",
        ("vllm_multi_gpu_aggregates", "experiments.csv"): "aggregates",
        ("vllm_cpu_engine",): "CPU engine",
    }
    for parts, name in expected.items():
        path = root.joinpath(*parts)
        assert path.exists()
        assert [name in one.name for one in FORMATS if one.recognises(path)] == [True]
    others = [root / "silicon_e2e" / f"dense_{engine}.csv" for engine in ("sglang", "trtllm")]
    assert not [one for path in others for one in FORMATS if one.recognises(path)]


def test_measured_clients_in_one_folder():
    told = []
    runs = read_runs(shared_data("bench_clients"), SCENARIO, on_refused=told.append)
    assert len(runs) == 9
    assert ["connection_refused" in str(error) for error in told] == [True, True]
