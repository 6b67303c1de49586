"""What an engine adds to its kernels, fitted to what clients measured: by Gauss-Newton over simulated runs.

A term is a number of the profile: an overhead of the host (`host.per_seq_s`), or a factor on kernels as the engine runs
them (`served.compute`). Residuals are logarithms of simulated over measured metrics, each over what is asked of that
metric, so that 5% of TPOT weigh as much as 12% of TTFT; beyond one of these they count less (Huber). Each term also has
a value that is expected before anything is measured, and a spread around it: with few runs a term stays there.

The simulation is not differentiable (a request more or less in a step), so derivatives are differences over a tenth of
a term's spread, and of many requests at once. A fit without some curve is one Gauss-Newton step from the fit to all,
with the derivatives there: it is judged by simulating the curve with what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import lsq_linear

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.predict import Prediction, predict_all
from sim.curves.term import Float
from sim.profile import HostOverhead, Profile
from sim.served import Served
from workloads.errors import InputError

ASKED: Final[Mapping[str, float]] = {
    "mean_tpot_ms": 0.05,
    "mean_ttft_ms": 0.12,
    "median_ttft_ms": 0.12,
    "mean_e2el_ms": 0.05,
}
"""Metrics that are fitted, where measured, and the relative error that counts as one."""

_ROUNDS: Final = 4
_STEP: Final = 0.1  # of a term's spread, for derivatives
_HUBER: Final = 1.0
_ENOUGH: Final = 0.02  # of a term's spread: no more rounds where every term moved by less
_LONGEST_MOVE: Final = 3.0  # spreads, in one round


@dataclass(frozen=True, slots=True)
class Term:
    """A number of the profile, by its path.

    expected, spread   where it is thought to be, and within what, before anything is measured
    low, high          what it may be
    """

    path: str
    expected: float
    spread: float
    low: float = 0.0
    high: float = np.inf


TERMS: Final[Mapping[str, Term]] = {
    term.path: term
    for term in (
        Term("host.base_s", 0.0, 2e-3),
        Term("host.per_layer_s", 0.0, 20e-6),
        Term("host.per_seq_s", 0.0, 20e-6),
        Term("host.cpu_base_s", 0.0, 2e-3),
        Term("host.cpu_per_seq_s", 0.0, 40e-6),
        Term("host.call_s", 20e-6, 30e-6),
        Term("host.piece_s", 0.0, 20e-6),
        Term("host.per_request_s", 0.0, 20e-3),
        Term("host.per_stream_s", 0.0, 100e-6),
        Term("host.per_input_token_s", 0.0, 2e-6),
        Term("served.compute", 1.0, 0.2, 0.5, 3.0),
        Term("served.prefill_attention", 1.0, 0.2, 0.3, 3.0),
        Term("served.gemm_fixed", 1.0, 0.4, 0.0, 2.0),
        Term("served.decode_fixed", 1.0, 0.4, 0.0, 2.0),
        Term("served.all_reduce", 1.0, 0.4, 0.3, 4.0),
        Term("served.routing_s", 0.0, 10e-6),
        Term("served.experts.w4a16_mxfp4.few", 1.0, 0.3, 0.2, 3.0),
        Term("served.experts.w4a16_mxfp4.many", 1.0, 0.3, 0.2, 3.0),
        Term("served.experts.fp8_block.few", 1.0, 0.3, 0.2, 3.0),
        Term("served.experts.fp8_block.many", 1.0, 0.3, 0.2, 3.0),
        Term("served.all_reduce_large", 1.0, 0.3, 0.2, 3.0),
    )
}


@dataclass(frozen=True, eq=False)
class Fit:
    """A profile with terms fitted to runs.

    values      of the terms
    runs, rows  what was fitted; rows: (run, part, metric) of each residual
    jacobian    d residual / d term, in spreads, at the values
    residuals   there
    """

    profile: Profile
    terms: tuple[Term, ...]
    values: Float
    runs: tuple[MeasuredRun, ...]
    rows: tuple[tuple[int, int, str], ...]
    jacobian: Float
    residuals: Float

    @property
    def misfit(self) -> float:
        """Median of |predicted / measured - 1| over what was fitted."""
        asked = np.array([ASKED[metric] for _, _, metric in self.rows])
        return float(np.median(np.abs(np.expm1(self.residuals * asked))))

    def without(self, curve: str) -> Profile:
        """Return the profile as fitted to all other curves."""
        kept = np.array([self.runs[run].curve != curve for run, _, _ in self.rows])
        if not kept.any():
            raise InputError(f"curve {curve}: nothing else was fitted")
        moved = _move(self.terms, self.values, self.jacobian[kept], self.residuals[kept])
        return with_terms(self.profile, self.terms, self.values + moved)


def fit_overheads(
    profile: Profile,
    runs: Sequence[MeasuredRun],
    asked: Sequence[str | Term],
    *,
    source: str,
    log: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Fit terms, starting from the profile's own values; a path stands for the term of `TERMS`."""
    terms = tuple(TERMS[term] if isinstance(term, str) else term for term in asked)
    rows = tuple(_rows(runs))
    if not rows:
        raise InputError(f"nothing to fit: no run has any of {', '.join(ASKED)}")
    values = np.array([_value(profile, term) for term in terms])
    jacobian = None
    for number in range(_ROUNDS):
        if jacobian is None:
            residuals, jacobian = _linearised(profile, runs, terms, values, rows)
        else:
            residuals = _at(profile, runs, terms, values, rows)
        moved = _move(terms, values, jacobian, residuals)
        log(_progress(number, terms, values, residuals))
        values = values + moved
        if np.abs(moved / _spreads(terms)).max() < _ENOUGH:
            break
    residuals, jacobian = _linearised(profile, runs, terms, values, rows)
    log(_progress(_ROUNDS, terms, values, residuals))
    fitted = with_terms(profile, terms, values, source)
    return Fit(fitted, terms, values, tuple(runs), rows, jacobian, residuals)


def left_out(fit: Fit) -> Iterator[Prediction]:
    """Predict every run of a fit by the fit to the other curves."""
    without = {curve: fit.without(curve) for curve in dict.fromkeys(run.curve for run in fit.runs)}
    yield from predict_all(fit.runs, [without[run.curve] for run in fit.runs])


def with_terms(profile: Profile, terms: Sequence[Term], values: Float, source: str | None = None) -> Profile:
    """Return the profile with these values of the terms."""
    sections: dict[str, dict[str, Any]] = {
        "host": (profile.host or HostOverhead(base_s=0.0, source="")).model_dump(),
        "served": (profile.served or Served(source="")).model_dump(),
    }
    for term, value in zip(terms, values, strict=True):
        *folders, name = term.path.split(".")
        place: dict[str, Any] = sections
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = float(value)
    touched = {term.path.split(".")[0] for term in terms}
    if source is not None:
        for name in touched:
            sections[name]["source"] = source
    # read anew: a copy would keep what was derived from the profile before, its hash among it
    changed = {name: sections[name] for name in touched}
    return Profile.model_validate({**profile.model_dump(by_alias=True), **changed})


def _value(profile: Profile, term: Term) -> float:
    found: Any = profile.model_dump(include={"host", "served"})
    for name in term.path.split("."):
        found = None if found is None else found.get(name)
    return float(np.clip(term.expected if found is None else found, term.low, term.high))


def _rows(runs: Sequence[MeasuredRun]) -> Iterator[tuple[int, int, str]]:
    for i, run in enumerate(runs):
        for j, part in enumerate(run.parts):
            if part.apart is None:
                yield from ((i, j, metric) for metric in ASKED if metric in part.measured)


def _spreads(terms: Sequence[Term]) -> Float:
    return np.array([term.spread for term in terms])


def _at(
    profile: Profile,
    runs: Sequence[MeasuredRun],
    terms: Sequence[Term],
    values: Float,
    rows: Sequence[tuple[int, int, str]],
) -> Float:
    one = with_terms(profile, terms, values)
    return _residuals(list(predict_all(runs, [one] * len(runs))), rows)


def _linearised(
    profile: Profile,
    runs: Sequence[MeasuredRun],
    terms: Sequence[Term],
    values: Float,
    rows: Sequence[tuple[int, int, str]],
) -> tuple[Float, Float]:
    """Residuals, and their derivatives by each term in spreads."""
    points = [values] + [
        values + _STEP * spread * np.eye(len(terms))[i] for i, spread in enumerate(_spreads(terms))
    ]
    profiles = [with_terms(profile, terms, point) for point in points]
    tasks = [(run, one) for one in profiles for run in runs]
    said = list(predict_all([run for run, _ in tasks], [one for _, one in tasks]))
    columns = np.array(
        [_residuals(said[i * len(runs) : (i + 1) * len(runs)], rows) for i in range(len(points))]
    )
    return columns[0], (columns[1:] - columns[0]).T / _STEP


def _residuals(said: Sequence[Prediction], rows: Sequence[tuple[int, int, str]]) -> Float:
    return np.array(
        [
            np.log(said[i].parts[j][metric] / said[i].run.parts[j].measured[metric]) / ASKED[metric]
            for i, j, metric in rows
        ]
    )


def _move(terms: Sequence[Term], values: Float, jacobian: Float, residuals: Float) -> Float:
    """One bounded Gauss-Newton step with Huber weights; terms are held to what is expected of them."""
    spreads = _spreads(terms)
    weight = np.sqrt(np.minimum(1.0, _HUBER / np.maximum(np.abs(residuals), 1e-12)))
    expected = (np.array([term.expected for term in terms]) - values) / spreads
    matrix = np.vstack([weight[:, None] * jacobian, np.eye(len(terms))])
    wanted = np.concatenate([-weight * residuals, expected])
    low = np.maximum((np.array([term.low for term in terms]) - values) / spreads, -_LONGEST_MOVE)
    high = np.minimum((np.array([term.high for term in terms]) - values) / spreads, _LONGEST_MOVE)
    found = lsq_linear(matrix, wanted, bounds=(np.minimum(low, -1e-12), np.maximum(high, 1e-12)))
    moved: Float = (
        np.clip(values + found.x * spreads, [t.low for t in terms], [t.high for t in terms]) - values
    )
    return moved


def _progress(number: int, terms: Sequence[Term], values: Float, residuals: Float) -> str:
    said = ", ".join(f"{term.path} {value:.4g}" for term, value in zip(terms, values, strict=True))
    return f"round {number}: |residual| median {np.median(np.abs(residuals)):.2f}, {said}"
