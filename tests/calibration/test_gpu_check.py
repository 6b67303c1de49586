"""`servetwin gpu-check`: kernels against float64, stages within a budget, and all of it dry on the CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibration.gpu_check import Stages, gpu_check
from calibration.kernel_check import check_kernels
from hwbackend.device import open_device
from sim.cli import run_command
from sim.profile import load_profile


@pytest.fixture(scope="module")
def cpu():
    device = open_device("cpu")
    yield device
    device.close()


def test_kernels_of_the_cpu_are_right(cpu):
    verdicts = list(check_kernels(cpu))
    assert len({verdict.operation for verdict in verdicts}) == 10
    assert all(verdict.passed for verdict in verdicts)


def test_a_wrong_kernel_is_found(cpu, monkeypatch):
    right = type(cpu.ops).decode_attention

    def wrong(self, q, *rest, **options):
        out = right(self, q, *rest, **options)
        out[-1, 0, 0] = np.nan
        return out

    monkeypatch.setattr(type(cpu.ops), "decode_attention", wrong)
    failed = {verdict.operation for verdict in check_kernels(cpu) if not verdict.passed}
    assert failed == {"decode_attention"}


def test_gpu_check_reports_what_failed_and_goes_on(cpu, tmp_path, monkeypatch):
    stages = Stages(cpu, tmp_path, 1000.0)
    monkeypatch.setattr(stages, "_kernels", lambda: 1 / 0)
    for name in ("_speed", "_calibration"):
        monkeypatch.setattr(stages, name, lambda: (True, "fine", {}))
    monkeypatch.setattr(stages, "_confirm", lambda name: (True, name, {}))
    report = stages.run()
    assert not report["passed"]
    assert "division" in report["stages"]["kernels"]["said"]
    assert report["stages"]["confirm-prefetch"]["passed"]
    assert json.loads((tmp_path / "gpu-check.json").read_text()) == report


def test_gpu_check_ends_with_its_budget(cpu, tmp_path, monkeypatch):
    now = 100.0
    stages = Stages(cpu, tmp_path, 20.0, clock=lambda: now)

    def stage(passed, seconds):
        def run(*_name):
            nonlocal now
            now += seconds
            return passed, f"took {seconds}", {}

        return run

    for name, seconds in (("_kernels", 2.0), ("_speed", 3.0), ("_confirm", 15.0), ("_calibration", 1.0)):
        monkeypatch.setattr(stages, name, stage(passed=True, seconds=seconds))
    report = stages.run()
    said = {name: (one["passed"], one["seconds"]) for name, one in report["stages"].items()}
    assert said == {
        "kernels": (True, 2.0),
        "speed": (True, 3.0),
        "confirm-chunking": (True, 15.0),  # up to the very end of the budget
        "calibration": (False, 0.0),
        "confirm-cache_aware": (False, 0.0),
        "confirm-prefetch": (False, 0.0),
    }
    assert report["stages"]["calibration"]["said"] == "not run: the budget is used up"
    assert (report["passed"], report["seconds"]) == (False, 20.0)


def test_a_budget_that_is_none_is_one_line(capsys):
    assert run_command(["gpu-check", "--out", "/proc/x/y", "--budget", "0.5"]) == 2
    assert "--budget 0.5" in capsys.readouterr().err.strip().splitlines()[-1]


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
