"""Limits that scores have to keep, as a regression gate: `mean_tpot_ms=0.05`, `mean_tpot_ms:p90=12%`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibration.serving.measured_run import METRICS
from calibration.serving.scores import Pair, Score, by_metric, score
from workloads.errors import ConfigError

_VALUE: Final = {
    "mape": lambda found: found.mape,
    "bias": lambda found: abs(found.bias),
    "p50": lambda found: found.p50_abs_pct_err,
    "p90": lambda found: found.p90_abs_pct_err,
    "p99": lambda found: found.p99_abs_pct_err,
    "worst": lambda found: abs(found.worst.error),
}


@dataclass(frozen=True)
class Tolerance:
    """The most that a statistic of a metric's errors may be: a share."""

    metric: str
    statistic: str
    limit: float


@dataclass(frozen=True)
class Verdict:
    """What a statistic came to; None where nothing was scored, which no limit lets pass."""

    tolerance: Tolerance
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is not None and self.value <= self.tolerance.limit

    def as_json(self) -> dict[str, Any]:
        return {**vars(self.tolerance), "value": self.value, "met": self.met}


def parse_tolerance(text: str) -> Tolerance:
    """Read METRIC=VALUE or METRIC:STATISTIC=VALUE; VALUE is a share (0.05), or a percentage (5%)."""
    where = f"--tolerance {text}"
    name, equals, value = text.partition("=")
    metric, colon, statistic = name.strip().partition(":")
    if not equals or (colon and not statistic):
        raise ConfigError(f"{where}: write METRIC=VALUE, such as mean_tpot_ms=0.05 or mean_tpot_ms:p90=12%")
    if metric not in METRICS:
        raise ConfigError(f"{where}: no metric {metric!r}; one of {', '.join(METRICS)}")
    statistic = statistic or "mape"
    if statistic not in _VALUE:
        raise ConfigError(f"{where}: no statistic {statistic!r}; one of {', '.join(_VALUE)}")
    return Tolerance(metric, statistic, _share(value.strip(), where))


def judge(tolerances: Sequence[Tolerance], pairs: Iterable[Pair]) -> list[Verdict]:
    """Hold scores to their limits; what is scored apart is not asked."""
    found: Mapping[str, Score | None] = {
        metric: score(of_metric)
        for metric, of_metric in by_metric(pair for pair in pairs if pair.apart is None).items()
    }
    verdicts = []
    for one in tolerances:
        scored = found.get(one.metric)
        verdicts.append(Verdict(one, None if scored is None else _VALUE[one.statistic](scored)))
    return verdicts


def _share(text: str, where: str) -> float:
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise ConfigError(
            f"{where}: {text!r} is no number; write a share (0.05) or a percentage (5%)"
        ) from None
    share = value / 100 if percent else value
    if not math.isfinite(share) or share < 0:
        raise ConfigError(f"{where}: takes a share of at least 0, such as 0.05")
    if share > 1 and not percent:
        raise ConfigError(
            f"{where}: {value:g} would be {100 * value:g}%; write {value:g}%, or {value / 100:g}"
        )
    return share
