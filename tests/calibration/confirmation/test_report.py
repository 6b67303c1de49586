"""The report of a confirmation on whatever machine this is: three repetitions, of which two have to hold."""

from __future__ import annotations

import json
import os

import pytest

from calibration.confirmation.confirm import confirm
from calibration.confirmation.shipped import SHIPPED
from calibration.confirmation.text import outcome_lines
from calibration.gpu_check import gpu_check
from hwbackend.device import open_device
from sim.profile import load_profile


@pytest.mark.slow
@pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="measures the machine, which other tests use: pytest -n0 tests/calibration/confirmation/test_report.py",
)
def test_a_shipped_confirmation_holds_in_two_of_three_repetitions(capsys):
    """Mean TPOT and E2EL within 15%, their P90 within 25%, and the ordering where the gain exceeds the noise."""
    shipped = SHIPPED["chunking"]
    device = open_device("cpu")
    try:
        outcome = confirm(
            shipped.scenario("cpu"),
            [shipped.vary["cpu"]],
            device,
            overrides=["workload.num_requests=24"],
            metric=shipped.metric,
            repetitions=3,
        )
    finally:
        device.close()
    with capsys.disabled():
        print(f"\n{outcome_lines(outcome)}")
    held = [outcome.repetition_held(number) for number in range(3)]
    assert held.count(True) >= 2, held


STAGES = ["kernels", "speed", "confirm-chunking", "calibration", "confirm-cache_aware", "confirm-prefetch"]


@pytest.mark.slow
def test_gpu_check_runs_dry_on_the_cpu(tmp_path, capsys):
    """Within a budget that is far too small for a verdict: a stage leaves its files, or says that time was short."""
    out = tmp_path / "check"
    code = gpu_check(out=out, budget=25.0, device="cpu")
    report = json.loads((out / "gpu-check.json").read_text(encoding="utf-8"))
    stages = report["stages"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(stages) == STAGES
    assert all(stage["said"] in line for line, stage in zip(lines, stages.values(), strict=True))
    assert report["passed"] == all(stage["passed"] for stage in stages.values()) == (code == 0)
    assert stages["kernels"]["passed"]
    assert {verdict["passed"] for verdict in stages["kernels"]["verdicts"]} == {True}
    assert stages["speed"]["passed"]
    assert stages["speed"]["copy_bytes_per_s"] > 0
    for name, stage in list(stages.items())[2:]:
        folder = out / name
        if name == "calibration" and stage["passed"]:
            assert load_profile(out / "profile.json").residuals
        elif "metric" in stage:
            found = json.loads((folder / "confirmation.json").read_text(encoding="utf-8"))
            assert {key: stage[key] for key in found} == found
        else:  # other tests run too
            assert not stage["passed"]
            assert "budget" in stage["said"], stage
            assert not folder.exists()
