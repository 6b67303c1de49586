"""What inference-perf alone writes: stages."""

import numpy as np
import pytest

from calibration.serving.readers import inference_perf
from tests.calibration.serving.client_files import (
    known_run,
    write_inference_perf,
)
from tests.calibration.serving.client_formats import read_one


def test_inference_perf_stages_are_parts(tmp_path):
    """Failed requests count for their stage."""
    known = known_run(count=30, failed=(2,))
    run = read_one(inference_perf, write_inference_perf(tmp_path, known, stages=(10, 20)))
    first, second = run.parts
    assert [dict(part.labels) for part in run.parts] == [
        {"stage": 0, "request_rate": 1.0},
        {"stage": 1, "request_rate": 2.0},
    ]
    assert first.counted.sum() == 9
    np.testing.assert_array_equal(first.counted, ~second.counted)
    ttft = [known.ttft[i] for i in range(10) if i != 2]
    assert first.measured["mean_ttft_ms"] == pytest.approx(1e3 * np.mean(ttft), rel=1e-6)


def test_inference_perf_stages_that_do_not_add_up_are_scored_as_one(tmp_path):
    run = read_one(inference_perf, write_inference_perf(tmp_path, known_run(count=30), stages=(10, 10)))
    assert len(run.parts) == 1
    assert "the stages beside the file count [10, 10] requests, the file 30: scored as one" in run.caveats
