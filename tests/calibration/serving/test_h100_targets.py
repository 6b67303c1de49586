"""What the shipped H100 profile says of recorded runs of Llama-2-7B: within what is asked of it, stage by stage."""

from __future__ import annotations

import pytest

from calibration.serving.predict import Prediction, predict
from calibration.serving.readers import per_request
from tests.data import shared_data

ASKED = {"mean_e2el_ms": 0.06, "median_ttft_ms": 0.15}


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    runs = per_request.read(shared_data("vllm_h100_perrequest", "experiments.csv"))
    return [predict(run) for run in runs if any(part.apart is None for part in run.parts)]


@pytest.mark.parametrize("metric", ASKED)
def test_every_stage_that_is_not_overloaded(predictions, metric):
    """The fit saw these runs; on experiments left out it is within the same (tests/fidelity)."""
    errors = {
        (said.run.name, part.labels["stage"]): predicted[metric] / part.measured[metric] - 1
        for said in predictions
        for part, predicted in zip(said.run.parts, said.parts, strict=True)
        if part.apart is None
    }
    assert len(errors) == 5
    assert max(map(abs, errors.values())) <= ASKED[metric], errors


def test_tails_of_every_stage(predictions):
    for said in predictions:
        for part, predicted in zip(said.run.parts, said.parts, strict=True):
            if part.apart is None:
                assert predicted["p99_e2el_ms"] == pytest.approx(part.measured["p99_e2el_ms"], rel=0.08)
                assert predicted["p90_ttft_ms"] == pytest.approx(part.measured["p90_ttft_ms"], rel=0.15)
