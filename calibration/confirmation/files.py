"""A confirmation as files: the verdict, and the runs of its first repetition, simulated and measured side by side.

confirmation.json        as `servetwin confirm --json` prints it
scenario.lock.yaml       the first arm as it ran
profile.json             the device as it showed itself
arms/NAME.simulated/     a run directory
arms/NAME.measured/      another, with the engine's step log: meta.json, requests.csv, steps.csv
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

from calibration.confirmation.confirm import Confirmed
from calibration.confirmation.runs import ArmRuns
from hwbackend.engine.server import BACKEND
from hwbackend.engine.step_records import write_step_log
from sim.run_directory import LOCK, json_text, lock_text, write_run

CONFIRMATION: Final = "confirmation.json"
PROFILE: Final = "profile.json"


def write_confirmation(confirmed: Confirmed, directory: Path) -> None:
    """Write into an existing folder."""
    (directory / CONFIRMATION).write_text(json_text(confirmed.outcome.as_json()), encoding="utf-8")
    (directory / PROFILE).write_text(confirmed.profile.to_json(), encoding="utf-8")
    first = confirmed.simulated[0][0]
    (directory / LOCK).write_text(lock_text(first.scenario, first.service), encoding="utf-8")
    for one, simulated in zip(confirmed.runs, confirmed.simulated, strict=True):
        for kind, result in (("simulated", simulated[0]), ("measured", one.results[0])):
            folder = directory / "arms" / f"{one.arm.directory}.{kind}"
            folder.mkdir(parents=True)
            write_run(result, confirmed.load.trace, folder)
            if kind == "measured":
                _write_log(one, folder)


def _write_log(one: ArmRuns, folder: Path) -> None:
    served = one.served
    assert served is not None
    write_step_log(
        folder,
        served.records,
        served.table,
        served.core,
        engine=BACKEND,
        version=version("servetwin"),
        name=one.arm.name,
        prefix_caching=one.arm.scenario.engine.enable_prefix_caching,
    )
