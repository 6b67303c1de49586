"""Errors of predictions against measurements: per metric, by what runs have in common, never one blended score.

error = predicted / measured - 1, a share (0.05 is 5%): of one metric of one part of a run. The names of the scores
are those of `CONVENTIONS`; like scikit-learn's MAPE they are shares, though their names say percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.serving.measured_run import Label
from calibration.serving.predict import Prediction

RULES: Final = {
    "error": "predicted / measured - 1, of one metric of one part of a run; 0.05 is 5%",
    "mape": "mean of |error|; each part of a run counts once",
    "bias": "mean of the error with its sign: above zero where the twin is too high",
    "percentiles": "of |error|, linear between neighbours",
    "apart": "what is marked as a case of its own is scored by its reason alone, and enters no other score",
    "refused": "so is a run of which the twin could not serve every request",
    "left_out": "what has no prediction, or no measurement above zero, has no error",
}
"""How the scores come about, by name; fixed before any of them was looked at."""

TWIN_REFUSED: Final = "the twin could not serve every request"

Group = tuple[Label | None, ...]


@dataclass(frozen=True)
class Pair:
    """One metric of one part of a run: what was measured beside what was predicted.

    measured, predicted     latencies [ms], rates [1/s]; None where it is not known, or was not served
    apart                   why it is scored apart from the rest; None where it is not
    interval                that the prediction comes with; None where it has none
    """

    run: str
    curve: str
    part: int
    metric: str
    labels: Mapping[str, Label]
    measured: float | None
    predicted: float | None
    apart: str | None = None
    interval: tuple[float, float] | None = None
    profile_hash: str = ""

    @property
    def name(self) -> str:
        """The run; of later parts of it with their number, from 2."""
        return self.run if self.part == 0 else f"{self.run}, part {self.part + 1}"

    @property
    def error(self) -> float | None:
        """Relative, with its sign; None where there is none."""
        if self.measured is None or self.predicted is None or not self.measured > 0:
            return None
        error = self.predicted / self.measured - 1
        return error if math.isfinite(error) else None

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the interval."""
        if self.interval is None or self.measured is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True)
class Score:
    """Errors of one metric over a group of pairs; all shares, but for `count`.

    covered         pairs whose interval holds the measurement, of those that have an interval
    half_width      median of (high - low) / 2 over the prediction
    """

    metric: str
    count: int
    mape: float
    bias: float
    p50_abs_pct_err: float
    p90_abs_pct_err: float
    p99_abs_pct_err: float
    worst: Pair
    covered: float | None = None
    half_width: float | None = None

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {name: getattr(self, name) for name in STATISTICS}
        return {
            "count": self.count,
            **document,
            "worst": {"run": self.worst.name, "error": self.worst.error},
            "covered": self.covered,
            "half_width": self.half_width,
        }


STATISTICS: Final = ("mape", "bias", "p50_abs_pct_err", "p90_abs_pct_err", "p99_abs_pct_err")


def pairs_of(predictions: Iterable[Prediction], metrics: Sequence[str] = ()) -> list[Pair]:
    """Measured beside predicted, in the order of the runs; of runs without results what is predicted alone."""
    found = []
    for done in predictions:
        run, parts = done.run, done.run.parts
        for index, predicted in enumerate(done.parts):
            part = parts[index] if parts else None
            labels = run.labels if part is None else {**run.labels, **part.labels}
            apart = None if part is None else part.apart or (TWIN_REFUSED if done.refused else None)
            measured = {} if part is None else part.measured
            found += [
                Pair(
                    run.name,
                    run.curve,
                    index,
                    metric,
                    labels,
                    measured.get(metric),
                    predicted.get(metric),
                    apart,
                    interval=done.interval(metric, predicted[metric]) if metric in predicted else None,
                    profile_hash=done.profile_hash,
                )
                for metric in (predicted if part is None else measured)
                if not metrics or metric in metrics
            ]
    return found


def score(pairs: Iterable[Pair]) -> Score | None:
    """Score pairs of one metric; None where none of them has an error. Their order does not matter, to the last bit."""
    scored = [(pair, pair.error) for pair in pairs]
    errors = np.sort([error for _, error in scored if error is not None])
    if not errors.size:
        return None
    metrics = {pair.metric for pair, _ in scored}
    if len(metrics) > 1:
        raise ValueError(f"metrics are never mixed in one score: {', '.join(sorted(metrics))}")
    size = np.abs(errors)
    p50, p90, p99 = np.percentile(size, (50, 90, 99))
    worst = max(
        (pair for pair, error in scored if error is not None),
        key=lambda pair: (abs(pair.error or 0.0), pair.run, pair.part, pair.measured, str(pair.labels)),
    )
    return Score(
        metric=metrics.pop(),
        count=errors.size,
        mape=math.fsum(size) / errors.size,
        bias=math.fsum(errors) / errors.size,
        p50_abs_pct_err=float(p50),
        p90_abs_pct_err=float(p90),
        p99_abs_pct_err=float(p99),
        worst=worst,
        **_intervals([pair for pair, error in scored if error is not None]),
    )


def by_metric(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Pairs of each metric, in the order in which metrics first come."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.metric, []).append(pair)
    return found


def grouped(pairs: Iterable[Pair], by: Sequence[str]) -> dict[Group, list[Pair]]:
    """Pairs by the values of some labels, sorted by them: numbers as numbers, what lacks a label last."""
    found: dict[Group, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(tuple(pair.labels.get(name) for name in by), []).append(pair)
    return dict(sorted(found.items(), key=lambda item: [_rank(value) for value in item[0]]))


def _rank(value: Label | None) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def _intervals(pairs: Sequence[Pair]) -> dict[str, float | None]:
    with_interval = [pair for pair in pairs if pair.interval is not None and pair.predicted]
    if not with_interval:
        return {"covered": None, "half_width": None}
    widths = [
        (pair.interval[1] - pair.interval[0]) / 2 / pair.predicted
        for pair in with_interval
        if pair.interval is not None and pair.predicted
    ]
    return {
        "covered": sum(bool(pair.covered) for pair in with_interval) / len(with_interval),
        "half_width": float(np.median(widths)),
    }
