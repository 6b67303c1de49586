"""What AIPerf alone writes: warm-up and phases."""

import pytest

from calibration.serving.readers import aiperf
from tests.calibration.serving.client_files import (
    closed_run,
    known_run,
    write_aiperf,
)
from tests.calibration.serving.client_formats import read_one


def test_aiperf_leaves_the_warm_up_out(tmp_path):
    known = known_run()
    path = write_aiperf(tmp_path, known, warmup=5)
    run = read_one(aiperf, path)
    assert len(run.workload.trace) == len(known)
    assert "5 warm-up requests are left out" in run.caveats


@pytest.mark.parametrize(
    ("phase", "seats"),
    [
        ({"concurrency": 4}, 4),
        ({"concurrency": 4, "rate": 9.0}, None),
        ({"rate": 9.0}, None),
    ],
)
def test_aiperf_loop_stands_in_its_summary(tmp_path, phase, seats):
    phases = [{"kind": "warmup", "concurrency": 2}, {"kind": "profiling"} | phase]
    path = write_aiperf(tmp_path, closed_run(4, 40), summary={"input_config": {"phases": phases}})
    assert read_one(aiperf, path).workload.max_concurrency == seats
