"""Service-level objectives of a plan: a statistic of a latency, and its limit.

A refused request has broken every limit: it counts as one whose latency is infinite. So a P99 forgives 1% of refused
requests, a P90 10%; no limit forgives more than 10%, and a mean as many as a P99.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sim.errors import ConfigError
from sim.scenario.sections import SloConfig
from sim.studies.observations import Observations, percentile_of, split_metric

_FORGIVEN_BY_A_MEAN = 0.01
_MOST_FORGIVEN = 0.1


@dataclass(frozen=True)
class Slo:
    """`metric` (`p99_ttft_ms`, say) must be at most `limit_ms`."""

    metric: str
    statistic: str
    latency: str
    limit_ms: float

    def value(self, observations: Observations) -> float:
        """The metric of a run, refused requests the slowest; NaN where no request has the latency."""
        return observations.latency_of_all(self.statistic, self.latency)

    @property
    def forgiven(self) -> float:
        """The share of refused requests up to which the limit can be kept."""
        if self.statistic == "mean":
            return _FORGIVEN_BY_A_MEAN
        return min(1 - percentile_of(self.statistic) / 100, _MOST_FORGIVEN)

    def __str__(self) -> str:
        return f"{self.metric} <= {self.limit_ms:g}"


def parse_slo(option: str) -> Slo:
    """Read `p99_ttft_ms=1000`: mean, median or pNN of ttft, tpot or e2el."""
    metric, equals, text = option.partition("=")
    parts = split_metric(metric.strip())
    if not equals or parts is None:
        raise ConfigError(
            f"--slo {option!r}: write METRIC=MS, METRIC as p99_ttft_ms, mean_tpot_ms, median_e2el_ms"
        )
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ConfigError(f"--slo {option!r}: {text.strip()!r} is not a number of milliseconds above 0")
    return Slo(metric.strip(), *parts, limit)


def resolve_slos(options: Sequence[str], config: SloConfig) -> tuple[Slo, ...]:
    """The limits of `--slo`, or else those of the scenario, each for the P99."""
    slos = [parse_slo(option) for option in options]
    if not slos:
        slos = [Slo(f"p99_{name}_ms", "p99", name, limit) for name, limit in config.limits_ms.items()]
    if not slos:
        raise ConfigError(
            "--slo: missing, and the scenario has no slo; give one, such as --slo p99_ttft_ms=1000"
        )
    names = [slo.metric for slo in slos]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--slo {name}: given twice; give one limit")
    return tuple(slos)
