"""Differences between arms, and which arm is shown to be best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.studies.observations import METRICS, higher_is_better, split_metric
from sim.studies.statistics import CONFIDENCE, interval

Float64 = NDArray[np.float64]
_MANY_TIMES = 10  # from here on a difference is said as a factor, not in percent


@dataclass(frozen=True)
class Difference:
    """One metric of an arm, less the same of another arm; None where one of them has no value."""

    arm: str
    metric: str
    delta: float | None
    relative: float | None
    ci_low: float | None
    ci_high: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.ci_low is not None and self.ci_high is not None and (self.ci_low > 0 or self.ci_high < 0)

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Estimates:
    """Metrics of all arms: as they are [arm, metric], and as resampled over `blocks` [draw, arm, metric]."""

    names: Sequence[str]
    values: Float64
    draws: Float64
    blocks: int

    def value(self, arm: int, metric: str) -> float | None:
        """One metric of one arm."""
        value = float(self.values[arm, METRICS.index(metric)])
        return None if np.isnan(value) else value

    def difference(self, arm: int, base: int, metric: str) -> Difference:
        """`arm` less `base`."""
        at = METRICS.index(metric)
        mine, other = self.value(arm, metric), self.value(base, metric)
        if mine is None or other is None:
            return Difference(self.names[arm], metric, None, None, None, None)
        delta = mine - other
        low, high = interval(self.draws[:, arm, at] - self.draws[:, base, at], self.blocks) or (None, None)
        return Difference(self.names[arm], metric, delta, delta / abs(other) if other else None, low, high)

    def ranking(self, metric: str) -> list[int]:
        """Arms that have the metric, best first; equal ones in their own order."""
        known = [arm for arm in range(len(self.names)) if self.value(arm, metric) is not None]
        sign = -1.0 if higher_is_better(metric) else 1.0
        return sorted(known, key=lambda arm: sign * float(self.values[arm, METRICS.index(metric)]))

    def winner(self, metric: str) -> int | None:
        """The arm that is best by `metric` and shown to differ from every other one that has it."""
        ranking = self.ranking(metric)
        if len(ranking) < 2:
            return None
        best, others = ranking[0], ranking[1:]
        return best if all(self.difference(best, other, metric).shown for other in others) else None


def verdict(estimates: Estimates, metric: str) -> str:
    """One or two sentences with numbers, for a reader who knows no statistics."""
    ranking = estimates.ranking(metric)
    if len(ranking) < 2:
        return f"no difference shown: fewer than two arms have a {metric} (no request of the others came that far)."
    best = ranking[0]
    if estimates.winner(metric) is None:
        return _undecided(estimates, metric, ranking)
    second = ranking[1]
    gap = estimates.difference(best, second, metric)
    names = estimates.names
    text = (
        f"{names[best]} is better than {names[second]}: {metric} is {quantity(estimates.value(best, metric), metric)} "
        f"instead of {quantity(estimates.value(second, metric))}{_percent(gap, estimates.value(second, metric))}."
    )
    return text + _price(estimates, metric, best, second)


def _undecided(estimates: Estimates, metric: str, ranking: Sequence[int]) -> str:
    best = ranking[0]
    gaps = {other: estimates.difference(best, other, metric) for other in ranking[1:]}
    other, gap = next((arm, gap) for arm, gap in gaps.items() if not gap.shown)
    names = estimates.names
    both = f"{names[best]} and {names[other]}"
    value = quantity(estimates.value(best, metric), metric)
    if gap.delta == 0 and gap.ci_low == 0 == gap.ci_high:
        return f"no difference shown: {both} give the same {metric}, {value}."
    text = f"no difference shown: {metric} is {value} for {names[best]} and {quantity(estimates.value(other, metric))} "
    text += f"for {names[other]}, "
    if gap.ci_low is None or gap.ci_high is None:
        return text + "and there are too few values to judge that."
    return (
        text + f"and the difference may be chance ({CONFIDENCE:.0%} interval of the difference: "
        f"{_signed(gap.ci_low)} to {_signed(gap.ci_high, metric)}). More requests or replications would say more."
    )


def _price(estimates: Estimates, metric: str, best: int, second: int) -> str:
    """Name what the winner loses most on, by its share, among the metrics that people watch."""
    watched = (
        "mean_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "p99_tpot_ms",
        "mean_e2el_ms",
        "output_throughput",
    )
    worst: Difference | None = None
    for name in watched:
        gap = estimates.difference(best, second, name)
        if name == metric or not gap.shown or gap.relative is None or gap.delta is None:
            continue
        loses = (gap.delta < 0) == higher_is_better(name)
        if loses and (worst is None or worst.relative is None or abs(gap.relative) > abs(worst.relative)):
            worst = gap
    if worst is None or worst.relative is None or abs(worst.relative) < 0.01:
        return ""
    here, there = estimates.value(best, worst.metric), estimates.value(second, worst.metric)
    return f" It pays with {worst.metric}: {quantity(here, worst.metric)} instead of {quantity(there)}."


def _percent(gap: Difference, base: float | None) -> str:
    if gap.relative is None or not base or gap.ci_low is None or gap.ci_high is None:
        return ""
    ends = (gap.ci_low / base, gap.ci_high / base)
    if gap.relative >= _MANY_TIMES - 1:
        factors = f"{quantity(1 + ends[0])} to {quantity(1 + ends[1])}"
        return f", {quantity(1 + gap.relative)} times as much ({CONFIDENCE:.0%} interval: {factors} times)"
    low, high = sorted(map(abs, ends))
    if gap.relative < 0:
        high = min(high, 1.0)  # nothing falls by more than all of it
    word = "more" if (gap.delta or 0) > 0 else "less"
    return f", {abs(gap.relative):.1%} {word} ({CONFIDENCE:.0%} interval: {low:.1%} to {high:.1%})"


def change(relative: float) -> str:
    """A relative difference: in percent, or as a factor where that says more."""
    if relative >= _MANY_TIMES - 1:
        return f"{quantity(1 + relative)}x"
    if -1 < relative <= -0.99:
        return f"1/{quantity(1 / (1 + relative))}"
    return f"{relative:+.1%}" if abs(relative) >= 0.0005 else "0.0%"


def unit(metric: str) -> str:
    """What a metric counts."""
    if split_metric(metric) or metric.endswith("_ms"):
        return "ms"
    return "tokens/s" if metric == "output_throughput" else "requests/s"


def quantity(value: float | None, metric: str | None = None) -> str:
    """A value in four digits, with its unit where the metric is given."""
    text = "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit(metric)}" if metric else text


def _signed(value: float, metric: str | None = None) -> str:
    return ("+" if value > 0 else "") + quantity(value, metric)
