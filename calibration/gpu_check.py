"""`servetwin gpu-check`: kernels, calibration and confirmations of a device in one go, within a budget.

Stages run in order of what matters most where time is short: whether the kernels are right, how fast they are beside
the device's own copies and products, a confirmation, a calibration, the other confirmations. Each leaves its files
under the directory as soon as it is done, and its line in `gpu-check.json`; a stage that fails says so there and lets
the others run.
"""

from __future__ import annotations

import json as json_format
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

from calibration.options import FLAG, say
from workloads.errors import ConfigError

if TYPE_CHECKING:
    from hwbackend.device import Device

REPORT: Final = "gpu-check.json"
Facts = dict[str, Any]
_ORDER: Final = ("chunking", "cache_aware", "prefetch")
_SHARES: Final = {"speed": 0.05, "confirmation": 0.22, "calibration": 0.25}
"""Of the budget, for each stage; kernels take what they take, which is seconds."""


def gpu_check(
    *,
    out: Path,
    budget: float = 420.0,
    device: str = "auto",
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Check kernels, calibrate, and run the shipped confirmations on this machine's device.

    Exit code 1 where a kernel is wrong, a stage failed, or a confirmation did not hold. Runs on a CPU too.

    Parameters
    ----------
    out
        Directory for everything that comes of it; must be new or empty.
    budget
        Seconds for all of it.
    device
        auto (a GPU if there is one), cpu or cuda.
    json
        Print one JSON document on standard output and nothing else.

    """
    from hwbackend.device import open_device  # noqa: PLC0415  not for --help

    if not 1 <= budget <= 86_400:
        raise ConfigError(f"--budget {budget:g}: seconds, from 1 to 86400")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: is not empty; give a new directory")
    opened = open_device(device)
    try:
        out.mkdir(parents=True, exist_ok=True)
        report = Stages(opened, out, budget).run()
    finally:
        opened.close()
    if json:
        sys.stdout.write(json_format.dumps(report, indent=1) + "\n")
    else:
        for name, stage in report["stages"].items():
            print(
                f"{name}: {'passed' if stage['passed'] else 'NOT passed'} ({stage['seconds']:.0f} s) {stage['said']}"
            )
    return 0 if report["passed"] else 1


class Stages:
    """Runs the stages that time suffices for by `clock`, and rewrites the report after each."""

    def __init__(
        self, device: Device, out: Path, budget_s: float, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.device = device
        self.out = out
        self.budget_s = budget_s
        self._clock = clock
        identity = device.identity
        self.report: dict[str, Any] = {
            "device": {"kind": identity.kind, "name": identity.name, "facts": dict(identity.facts)},
            "budget_s": budget_s,
            "passed": True,
            "stages": {},
        }
        self._began = clock()

    def run(self) -> dict[str, Any]:
        self._stage("kernels", self._kernels)
        self._stage("speed", self._speed)
        first, *others = _ORDER
        self._stage(f"confirm-{first}", lambda: self._confirm(first))
        self._stage("calibration", self._calibration)
        for name in others:
            self._stage(f"confirm-{name}", lambda name=name: self._confirm(name))  # type: ignore[misc]
        return self.report

    @property
    def _left_s(self) -> float:
        return self.budget_s - self._elapsed_s

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._began

    def _stage(self, name: str, call: Callable[[], tuple[bool, str, Facts]]) -> None:
        began = self._elapsed_s
        facts: Facts = {}
        if began >= self.budget_s:
            passed, said = False, "not run: the budget is used up"
        else:
            say(f"{name}: {self.budget_s - began:.0f} s left")
            try:
                passed, said, facts = call()
            except Exception as error:  # noqa: BLE001  the other stages still tell something; this one is reported
                passed, said, facts = False, f"failed: {error}", {"traceback": traceback.format_exc()}
        stage = {"passed": passed, "seconds": self._elapsed_s - began, "said": said, **facts}
        self.report["stages"][name] = stage
        self.report["passed"] &= passed
        self.report["seconds"] = self._elapsed_s
        (self.out / REPORT).write_text(json_format.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        say(f"{name}: {said}")

    def _kernels(self) -> tuple[bool, str, Facts]:
        from calibration.kernel_check import check_kernels  # noqa: PLC0415

        verdicts = list(check_kernels(self.device))
        wrong = [verdict for verdict in verdicts if not verdict.passed]
        said = f"{len(verdicts)} operations checked against float64, {len(wrong)} wrong"
        rows = [
            {**_fields(verdict), "error": str(verdict.error), "passed": verdict.passed}
            for verdict in verdicts
        ]
        return not wrong, said, {"verdicts": rows}

    def _speed(self) -> tuple[bool, str, Facts]:
        from calibration.kernel_speed import kernel_speed  # noqa: PLC0415

        speed = kernel_speed(self.device, _SHARES["speed"] * self.budget_s)
        said = (
            f"decode attention at {speed.decode_of_copy:.0%} of copy bandwidth, "
            f"prefill attention at {speed.prefill_of_gemm:.0%} of the products"
        )
        return True, said, _fields(speed)

    def _confirm(self, name: str) -> tuple[bool, str, Facts]:
        from calibration.confirmation.confirm import confirm  # noqa: PLC0415
        from calibration.confirmation.files import CONFIRMATION, write_confirmation  # noqa: PLC0415
        from calibration.confirmation.shipped import SHIPPED  # noqa: PLC0415
        from calibration.confirmation.text import verdict  # noqa: PLC0415
        from sim.run_directory import new_directory  # noqa: PLC0415

        shipped, kind = SHIPPED[name], self.device.kind
        confirmed = confirm(
            shipped.scenario(kind),
            [shipped.vary[kind]],
            self.device,
            metric=shipped.metric,
            budget_s=min(_SHARES["confirmation"] * self.budget_s, self._left_s),
            say=say,
        )
        with new_directory(self.out / f"confirm-{name}", CONFIRMATION) as directory:
            write_confirmation(confirmed, directory)
        outcome = confirmed.outcome
        return not outcome.refuted, verdict(outcome), outcome.as_json()

    def _calibration(self) -> tuple[bool, str, Facts]:
        from calibration.calibrate import fit_measurements, measure_points  # noqa: PLC0415
        from calibration.confirmation.shipped import SHIPPED  # noqa: PLC0415
        from calibration.points import Extent, plan  # noqa: PLC0415
        from hwbackend.samples import SampleStore  # noqa: PLC0415
        from sim.model import load_model  # noqa: PLC0415
        from sim.scenario.reading import load_scenario  # noqa: PLC0415

        model = load_model(load_scenario(SHIPPED[_ORDER[0]].scenario(self.device.kind)).model)
        extent = Extent.of(self.device)
        points = plan(self.device, [model], extent)
        store = SampleStore(self.out / "profile_raw", self.device.identity.fingerprint, resume=False)
        seconds = min(_SHARES["calibration"] * self.budget_s, self._left_s)
        left = measure_points(self.device, points, seconds, store, lambda _progress: None)
        profile = fit_measurements(self.device, store, "profile", extent)
        (self.out / "profile.json").write_text(profile.to_json(), encoding="utf-8")
        residuals = {one.term: one.median for one in profile.residuals}
        said = f"{len(points) - len(left)} of {len(points)} points measured, profile.json written"
        return True, said, {"points_left": len(left), "median_residuals": residuals}


def _fields(record: Any) -> dict[str, Any]:  # noqa: ANN401  a dataclass with slots
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
