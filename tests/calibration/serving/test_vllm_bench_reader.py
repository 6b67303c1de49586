"""What `vllm bench serve` alone writes: limits, several runs in a file, gaps."""

import numpy as np
import pytest

from calibration.serving.readers import vllm_bench
from tests.calibration.serving.client_files import (
    SCENARIO,
    closed_run,
    known_run,
    write_vllm,
)
from tests.calibration.serving.client_formats import by_definition, read_one
from workloads.trace import NS_PER_S


def test_vllm_in_a_closed_loop(tmp_path):
    run = read_one(
        vllm_bench,
        write_vllm(
            tmp_path, closed_run(4, 40), request_rate="inf", max_concurrency=4, queue_times=[1.0] * 40
        ),
    )
    assert run.workload.max_concurrency == run.labels["concurrency"] == 4
    assert not run.workload.trace.arrival_ns.any()
    assert run.scenario.workload.max_concurrency == 4


def test_vllm_at_a_rate_behind_a_limit(tmp_path):
    """A limit that never held anything back changes nothing; else what was really sent is replayed."""
    known = known_run()
    free = read_one(vllm_bench, write_vllm(tmp_path, known, max_concurrency=64))
    assert free.workload.max_concurrency is None
    assert free.caveats == ()
    held = read_one(
        vllm_bench, write_vllm(tmp_path, known, max_concurrency=4, queue_times=[0.05] * len(known))
    )
    assert held.workload.max_concurrency is None
    np.testing.assert_allclose(
        held.workload.trace.arrival_ns / NS_PER_S, np.array(known.sent) - known.sent[0], atol=1e-6
    )
    assert "times of sending are replayed" in held.caveats[0]


def test_several_vllm_runs_in_a_file(tmp_path):
    texts = [write_vllm(tmp_path, known_run(seed)).read_text() for seed in (0, 1)]
    path = tmp_path / "runs.json"
    path.write_text("\n".join(texts))
    runs = vllm_bench.read(path, SCENARIO)
    assert [run.name for run in runs] == [f"{path} #1", f"{path} #2"]
    for seed, run in enumerate(runs):
        assert dict(run.parts[0].measured) == pytest.approx(by_definition(known_run(seed)), rel=1e-6)


def test_vllm_without_latencies_sums_the_gaps(tmp_path):
    known = known_run()
    run = read_one(vllm_bench, write_vllm(tmp_path, known, latencies=None))
    assert dict(run.parts[0].measured) == pytest.approx(by_definition(known), rel=1e-6)
