"""`servetwin profile fit --engine-log`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from calibration import profile_text
from calibration.engine_log import read_engine_log
from calibration.engine_log_errors import RunError, errors_on, residual
from calibration.fit_engine_log import cross_validate, fit_engine_log
from sim.profile import load_profile
from workloads.errors import InputError
from workloads.replacing import replacing


def fit_from_log(
    logs: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    base: str | None,
    model: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Fit, judge, write, print."""
    twice = {path.resolve() for path in logs} & {path.resolve() for path in held_out}
    if twice:
        raise InputError(
            f"--held-out {min(twice)}: is fitted as well; hold out a run that is not under --engine-log"
        )
    with replacing(out, force=force) as draft:
        log = read_engine_log(logs, model)
        start = None if base is None else load_profile(base)
        fitted = fit_engine_log(log, out.stem, start)
        if held_out:
            errors = errors_on(fitted, read_engine_log(held_out, model))
            what = f"steps of {', '.join(error.run for error in errors)}, none of which was fitted"
        else:
            errors = cross_validate(log, out.stem, start)
            what = "steps of each run" if len(log.runs) > 1 else "each fifth of the steps"
            what += ", by a fit to the others"
        fitted = fitted.model_copy(update={"residuals": (residual(errors, what),)})
        draft.write_text(fitted.to_json(), encoding="utf-8")
    print(f"wrote {out}", file=sys.stderr)
    if as_json:
        facts = {"file": str(out), "runs": [asdict(error) for error in errors]}
        print(json.dumps(facts | profile_text.document(fitted), indent=2))
    else:
        print(f"{profile_text.profile_lines(fitted)}\n\n{what}:\n{_lines(errors)}")


def _lines(errors: Sequence[RunError]) -> str:
    rows = [["run", "step time: median", "P90", "in all", "steps"]]
    rows += [
        [error.run, f"{error.median:.1%}", f"{error.p90:.1%}", f"{error.total:+.1%}", f"{error.steps}"]
        for error in errors
    ]
    return profile_text.table(rows)
