"""A profile from what clients measured of a server: how a user calibrates without kernels and without a step log.

A base profile of the same kind of device, or the scenario's own, is where the fit starts; its curves keep their
shape. Few runs tell few things apart, so few terms move, each held to the base: what a step costs beyond its kernels,
and what each of its sequences adds; what a request costs before and after the engine; how much slower long steps are
than their kernels alone. `fit_overheads` finds them; every run counts as a curve of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from calibration.serving.fit_overheads import ASKED, TERMS, Fit, Term, fit_overheads, left_out
from calibration.serving.measured_run import MeasuredRun
from calibration.serving.predict import Prediction, predict_all
from calibration.serving.scores import Pair, by_metric, pairs_of
from sim.profile import Profile, Residual
from workloads.errors import InputError

FITTED: Final = ("host.base_s", "host.per_seq_s", "host.per_request_s", "served.compute")

_OFF: Final = 0.3  # share by which a base profile's own terms are thought to be off
_SPIKE: Final = 0.2
_FEWEST: Final = 2  # runs, to leave one out


@dataclass(frozen=True, eq=False)
class ResultFit:
    """A profile fitted to results of clients, and what it says of runs that it was not fitted to.

    held_out    what was held out of the fit that judged is of; None where there was a single run, so nothing
    judged      metrics of those runs, measured and predicted
    before      the same by the base profile
    misfit      median of |error| on what was fitted
    """

    profile: Profile
    held_out: str | None
    judged: tuple[Pair, ...]
    before: tuple[Pair, ...]
    misfit: float = 0.0


def fit_results(
    runs: Sequence[MeasuredRun],
    base: Profile,
    name: str,
    held_out: Sequence[MeasuredRun] = (),
    *,
    log: Callable[[str], None] = lambda _: None,
) -> ResultFit:
    """Fit to `runs`; judge on `held_out`, or without any on each run by a fit to the others."""
    single = [replace(run, curve=run.name) for run in runs]
    first = list(predict_all([*single, *held_out], [base] * (len(single) + len(held_out))))
    _check_served(first)
    source = f"results of clients: {', '.join(_trusted(runs))}"
    fit = fit_overheads(base, single, terms_around(base), source=source, log=log)
    judged, what = _judge(fit, held_out)
    before = _asked(pairs_of(first[len(single) :] if held_out else first))
    facts = {
        "name": name,
        "created": datetime.now(UTC).date().isoformat(),
        "residuals": residuals(judged, what) if what is not None else (),
        "errors": (),  # those of the base are of other servers
    }
    # read anew rather than copied: a copy would keep the hash of the base
    profile = Profile.model_validate({**fit.profile.model_dump(by_alias=True), **facts})
    return ResultFit(profile, what, tuple(judged), tuple(before) if what is not None else (), fit.misfit)


def terms_around(base: Profile) -> tuple[Term, ...]:
    """Return the terms of such a fit: expected where the base has them, or where they usually are."""
    found = []
    for path in FITTED:
        term = TERMS[path]
        section, field = path.split(".")
        own = getattr(base, section)
        value = term.expected if own is None else float(getattr(own, field))
        found.append(replace(term, expected=value, spread=max(term.spread, _OFF * abs(value))))
    return tuple(found)


def residuals(judged: Sequence[Pair], held_out: str) -> list[Residual]:
    """Sum up the errors by metric, as a profile states them."""
    found = []
    for metric, pairs in by_metric(judged).items():
        errors = np.abs([pair.error for pair in pairs if pair.error is not None])
        found.append(
            Residual(
                term=metric,
                held_out=held_out,
                rows=errors.size,
                median=round(float(np.median(errors)), 4),
                p90=round(float(np.quantile(errors, 0.9)), 4),
                spike_share=round(float((errors > _SPIKE).mean()), 4),
            )
        )
    return found


def _trusted(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the names of the runs that are fitted; at least one."""
    names = [run.name for run in runs if any(part.apart is None for part in run.parts)]
    if not names:
        reasons = dict.fromkeys(part.apart for run in runs for part in run.parts)
        raise InputError(f"nothing to fit: {'; '.join(str(reason) for reason in reasons)}")
    return names


def _check_served(said: Sequence[Prediction]) -> None:
    """Refuse runs whose requests the scenario could never serve: it is not the server that was measured."""
    for one in said:
        if one.refused:
            raise InputError(
                f"{one.run.name}: {one.refused} of its requests do not fit what the scenario says (max_model_len, KV "
                "blocks), though the server answered them; set engine to what the server ran with"
            )


def _judge(fit: Fit, held_out: Sequence[MeasuredRun]) -> tuple[list[Pair], str | None]:
    if held_out:
        said = predict_all(held_out, [fit.profile] * len(held_out))
        return _asked(pairs_of(said)), "runs of which none was fitted"
    if len({run for run, _, _ in fit.rows}) < _FEWEST:
        return [], None
    return _asked(pairs_of(left_out(fit))), "each run, by a fit to the others"


def _asked(pairs: Sequence[Pair]) -> list[Pair]:
    """Return what a fit is asked for, of parts that are not scored apart."""
    return [pair for pair in pairs if pair.metric in ASKED and pair.apart is None and pair.error is not None]
