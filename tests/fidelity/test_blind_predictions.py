"""Predictions of runs whose results are not known: what their rows add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.serving.measured_run import Part
from calibration.serving.readers.experiment import Experiment
from calibration.serving.readers.shared_prefix import SharedPrefixLoad, Stage
from tests.fidelity.blind_predictions import GIVEN_UP, rows_of


def experiment(*stages, output_tokens=11, **others):
    load = SharedPrefixLoad(stages, 100, 1000, output_tokens)
    return Experiment("one", "x", "llama-2-7b", "h100_sxm", 1, "auto", "x", load, 2048, **others)


def test_stages_make_up_the_whole():
    two = experiment(Stage(2.0, 3.0), Stage(1.0, 4.0))
    whole, first, second = rows_of(two.run((Part({}), *two.stages())))
    assert (whole["stage"], first["stage"], second["stage"]) == ("", 0, 1)
    assert whole["requests"] == first["requests"] + second["requests"] == 10
    assert whole["refused"] == whole["given_up"] == 0
    mean = (6 * float(first["mean_e2el_ms"]) + 4 * float(second["mean_e2el_ms"])) / 10
    assert float(whole["mean_e2el_ms"]) == pytest.approx(mean, rel=1e-5)


def test_who_waits_longer_than_the_client_is_counted_and_left_out():
    flood = experiment(Stage(40.0, 40.0), output_tokens=1400, caveats=(GIVEN_UP,))
    [row] = rows_of(flood.run((Part({}),)))
    assert 0 < row["given_up"] < row["requests"] == 1600
    assert float(row["p99_e2el_ms"]) <= 300_000
    [patient] = rows_of(replace(flood, caveats=()).run((Part({}),)))
    assert patient["given_up"] == 0
    assert float(patient["p99_e2el_ms"]) > 300_000
