"""The report of a confirmation on whatever machine this is: three repetitions, of which two have to hold."""

from __future__ import annotations

import os

import pytest

from calibration.confirm import confirm
from calibration.confirm_text import outcome_lines
from calibration.gpu_check import gpu_check
from calibration.shipped_confirmations import SHIPPED
from hwbackend.device import open_device


@pytest.mark.slow
@pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="measures the machine, which other tests are using: pytest -n0 tests/calibration/test_confirm_report.py",
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


@pytest.mark.slow
def test_gpu_check_runs_dry_on_the_cpu(tmp_path, capsys):
    """Within a budget that is far too small for a verdict: every stage leaves its files or says why it does not."""
    out = tmp_path / "check"
    gpu_check(out=out, budget=25.0, device="cpu")
    stages = capsys.readouterr().out.splitlines()
    assert stages[0].startswith("kernels: passed")
    assert stages[1].startswith("speed: passed")
    assert [line.split(":")[0] for line in stages[2:]] == [
        "confirm-chunking",
        "calibration",
        "confirm-cache_aware",
        "confirm-prefetch",
    ]
    done = (out / "confirm-chunking" / "confirmation.json").is_file()
    short = (
        "the budget is used up" in stages[2] or "give a larger --budget" in stages[2]
    )  # other tests run too
    assert done or short, stages
    assert (out / "gpu-check.json").is_file()
