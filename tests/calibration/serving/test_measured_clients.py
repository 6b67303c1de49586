"""Clients' results as they were measured, and what their descriptions say of them."""

import pytest

from calibration.serving.readers import aiperf, guidellm, inference_perf, vllm_bench
from calibration.serving.readers.client_judgement import STARVED
from tests.calibration.serving.client_files import (
    SCENARIO,
)
from tests.calibration.serving.client_formats import read_one
from tests.data import shared_data
from workloads.errors import InputError

README = {  # means [ms] and counts as the description of the data has them
    "random_rate0.6": (60, 255.2, 27.4, 1651.7),
    "random_rate1.5": (80, 321.6, 47.9, 3272.9),
    "prefix_repetition_rate1.5": (60, 160.8, 28.3, 1039.5),
    "timed_trace_failures": (20, 210.9, 27.9, 797.2),
    "random_rate1.5_rep2": (80, 283.0, 40.1, 2768.8),
}


@pytest.mark.parametrize("name", README)
def test_measured_vllm_runs(name):
    run = read_one(vllm_bench, shared_data("bench_clients", "vllm_bench_serve", name, "result.json"))
    count, ttft, tpot, e2el = README[name]
    (part,) = run.parts
    assert len(run.workload.trace) == count
    found = [part.measured[f"mean_{metric}_ms"] for metric in ("ttft", "tpot", "e2el")]
    assert found == pytest.approx([ttft, tpot, e2el], abs=0.06)
    assert not any("in the file" in caveat for caveat in run.caveats)


def test_measured_starved_client():
    path = shared_data("bench_clients", "vllm_bench_serve", "random_rate1.5_starved_client", "result.json")
    run = read_one(vllm_bench, path)
    (part,) = run.parts
    assert part.apart == STARVED
    assert part.measured["mean_ttft_ms"] == pytest.approx(1916, abs=1)  # the client says 7,911
    assert any("79% of its token gaps" in caveat for caveat in run.caveats)


def test_measured_guidellm_aiperf_and_inference_perf():
    """All of their own aggregates are those of their requests, by our definitions."""
    root = shared_data("bench_clients")
    one = read_one(guidellm, root / "guidellm" / "poisson_rate1.2" / "benchmarks.json")
    assert one.parts[0].measured["mean_ttft_ms"] == pytest.approx(250.2, abs=0.05)
    assert one.parts[0].measured["mean_tpot_ms"] == pytest.approx(30.56, abs=0.005)
    assert one.caveats == ()
    two = read_one(aiperf, root / "aiperf" / "poisson_rate1.2" / "artifacts" / "profile_export.jsonl")
    assert two.parts[0].measured["mean_tpot_ms"] == pytest.approx(35.61, abs=0.005)
    assert two.caveats == ("2 warm-up requests are left out",)
    reports = root / "inference-perf" / "shared_prefix_2stages" / "reports"
    three = read_one(inference_perf, reports / "per_request_lifecycle_metrics.json")
    assert [int(part.counted.sum()) for part in three.parts] == [15, 30]
    assert not any("in the file" in caveat for caveat in three.caveats)
    assert three.workload.trace.hashes is not None


@pytest.mark.parametrize(
    ("reader", "path"),
    [
        (aiperf, ("aiperf", "connection_refused", "artifacts", "profile_export.jsonl")),
        (
            inference_perf,
            ("inference-perf", "connection_refused", "reports", "per_request_lifecycle_metrics.json"),
        ),
    ],
)
def test_measured_total_failure_is_refused(reader, path):
    with pytest.raises(InputError, match="requests failed; no workload is left"):
        reader.read(shared_data("bench_clients", *path), SCENARIO)
