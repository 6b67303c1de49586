"""What guidellm alone writes: strategies, rates, requests cut off, names of before."""

import json

import pytest

from calibration.serving.readers import guidellm
from tests.calibration.serving.client_files import (
    SCENARIO,
    known_run,
    write_guidellm,
)
from tests.calibration.serving.client_formats import by_definition, read_one
from workloads.errors import InputError


@pytest.mark.parametrize(
    ("strategy", "seats"),
    [
        ({"type_": "concurrent", "streams": 4}, 4),
        ({"type_": "synchronous"}, 1),
        ({"type_": "throughput", "max_concurrency": 8}, 8),
        ({"type_": "constant", "rate": 2, "max_concurrency": 512}, None),
    ],
)
def test_guidellm_loops(tmp_path, strategy, seats):
    run = read_one(guidellm, write_guidellm(tmp_path, known_run(), strategy))
    assert run.workload.max_concurrency == seats


def test_guidellm_several_rates_in_a_file(tmp_path):
    found = [
        json.loads(write_guidellm(tmp_path, known_run(seed)).read_text())["benchmarks"][0] for seed in (0, 1)
    ]
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": found}))
    runs = guidellm.read(path, SCENARIO)
    assert [run.parts[0].measured["mean_ttft_ms"] for run in runs] == pytest.approx(
        [by_definition(known_run(seed))["mean_ttft_ms"] for seed in (0, 1)], rel=1e-4
    )


def test_guidellm_requests_cut_off_at_the_end_are_no_failures(tmp_path):
    run = read_one(guidellm, write_guidellm(tmp_path, known_run(), incomplete=(36, 37, 38, 39)))
    assert run.parts[0].apart is None
    assert "request_throughput" not in run.parts[0].measured
    assert any("4 of 40 requests (10.0%) were cut off at the end" in caveat for caveat in run.caveats)


def test_guidellm_sample_of_the_requests_is_refused(tmp_path):
    made = {"scheduler_metrics": {"requests_made": {"successful": 400}}}
    with pytest.raises(InputError, match="40 of 400 successful requests are recorded"):
        guidellm.read(write_guidellm(tmp_path, known_run(), **made), SCENARIO)


def test_guidellm_of_before_names_times_otherwise(tmp_path):
    path = write_guidellm(tmp_path, known_run())
    new = read_one(guidellm, path).parts[0].measured
    path.write_text(path.read_text().replace("_token_iteration", "_iteration"))
    assert read_one(guidellm, path).parts[0].measured == new


def test_guidellm_without_streaming_is_refused(tmp_path):
    path = write_guidellm(tmp_path, known_run(count=3))
    path.write_text(path.read_text().replace("first_token_iteration", "none"))
    with pytest.raises(InputError, match="no first_token_iteration; run guidellm with streaming"):
        guidellm.read(path, SCENARIO)
