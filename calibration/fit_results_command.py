"""`servetwin profile fit --engine-log` with results of clients in place of step logs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from calibration import profile_text
from calibration.options import say
from calibration.serving.fit_overheads import ASKED
from calibration.serving.fit_results import ResultFit, fit_results
from calibration.serving.measured_run import MeasuredRun
from calibration.serving.readers.detect import read_runs
from calibration.serving.scores import Pair
from sim.profile import Profile, load_profile
from sim.scenario.reading import read_mapping
from workloads.errors import ConfigError, InputError
from workloads.replacing import replacing

_MISFIT: Final = 0.5  # median error on what was fitted, beyond which the scenario is hardly of that server


def fit_from_results(
    results: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    base: str | None,
    scenario: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Fit, judge, write, print."""
    for path in (*results, *held_out):
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
    if scenario is None:
        raise ConfigError(
            f"--scenario: missing, and {results[0]} does not say what it was measured on: model, hardware and engine"
        )
    with replacing(out, force=force) as draft:
        raw = read_mapping(scenario)
        runs, judges = _read(results, raw), _read(held_out, raw)
        _check_once(runs, judges)
        start = _base(base, raw, scenario)
        found = fit_results(runs, start, out.stem, judges, log=say)
        draft.write_text(found.profile.to_json(), encoding="utf-8")
    if found.misfit > _MISFIT:
        say(
            f"note: the fit leaves {found.misfit:.0%} of error in the median, so the runs are hardly of the scenario's "
            "model and hardware"
        )
    say(f"wrote {out}")
    if as_json:
        facts = {"file": str(out), "base": start.name, "held_out": found.held_out, "runs": _documents(found)}
        print(json.dumps(facts | profile_text.document(found.profile), indent=2))
    else:
        print(f"{profile_text.profile_lines(found.profile)}\n\n{_lines(found, start.name)}")


def _read(paths: Iterable[Path], raw: Mapping[str, Any]) -> list[MeasuredRun]:
    """Read results; what must be known to trust them is said."""
    runs: list[MeasuredRun] = []
    for path in paths:
        if (path / "steps.csv").is_file():
            raise InputError(
                f"{path}: is a step log, which goes without --scenario; fit logs and results apart"
            )
        runs += read_runs(path, raw, on_refused=lambda error: say(f"left out: {error}"))
    for run in runs:
        for caveat in run.caveats:
            say(f"{run.name}: {caveat}")
        for part in run.parts:
            if part.apart is not None:
                say(f"{run.name}: not fitted ({part.apart})")
    return runs


def _check_once(runs: Sequence[MeasuredRun], judges: Sequence[MeasuredRun]) -> None:
    """Refuse a run that counts twice, or is judged by a fit to itself."""
    fitted = Counter(run.name for run in runs)
    for name, count in fitted.items():
        if count > 1:
            raise ConfigError(f"--engine-log {name}: given {count} times; once is enough")
    for run in judges:
        if run.name in fitted:
            raise ConfigError(
                f"--held-out {run.name}: is fitted too, by --engine-log; what judges is held out"
            )


def _base(name: str | None, raw: Mapping[str, Any], scenario: Path) -> Profile:
    """Return the profile named, or that of the scenario."""
    if name is not None:
        return load_profile(name)
    hardware = raw.get("hardware")
    hardware = hardware if isinstance(hardware, dict) else {}
    own = hardware.get("gpu") or hardware.get("profile")
    if not isinstance(own, str):
        raise ConfigError(
            f"{scenario}: hardware names no profile to start from; give gpu or profile, or --base"
        )
    return load_profile(own)


def _documents(found: ResultFit) -> list[dict[str, Any]]:
    return [
        {"run": pair.name, "metric": pair.metric, "measured": pair.measured, "predicted": pair.predicted}
        | {"error": pair.error, "error_of_base": base.error}
        for pair, base in zip(found.judged, found.before, strict=True)
    ]


def _lines(found: ResultFit, base: str) -> str:
    if found.held_out is None:
        return (
            "one run: nothing was held out, so nothing is known of the error; give more runs, or --held-out"
        )
    names = list(dict.fromkeys(pair.name for pair in found.judged))
    rows = [["run", *ASKED]]
    rows += [[name, *(_cell(found, name, metric) for metric in ASKED)] for name in names]
    return f"error on {found.held_out} (by {base} before):\n{profile_text.table(rows)}"


def _cell(found: ResultFit, name: str, metric: str) -> str:
    def error(pairs: Sequence[Pair]) -> float | None:
        return next((pair.error for pair in pairs if (pair.name, pair.metric) == (name, metric)), None)

    fitted, before = error(found.judged), error(found.before)
    return "-" if fitted is None or before is None else f"{fitted:+.1%} ({before:+.1%})"
