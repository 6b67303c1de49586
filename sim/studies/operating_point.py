"""A service at one request rate with some replicas: whether it keeps its SLOs, replicated near the edge.

Far from a limit one run is enough. Near it runs with other seeds are added until Student's interval of the metric
excludes the limit, or there are as many as allowed; then the mean decides.

A finite run hides overload: a queue that grows forever has only begun to. So a rate counts as stable only below the
throughput of the same requests sent all at once: a queue fed at a rate stays finite just below the throughput at
which it drains when it is never empty (Baccelli and Foss, "On the saturation rule for the stability of queues",
J. Appl. Prob. 32, 1995).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sim.errors import ConfigError
from sim.metrics import Requests
from sim.scenario.sections import Scenario
from sim.service import Service
from sim.simulation import Result, build_load, simulate
from sim.studies.observations import Observations, observe
from sim.studies.refusal import Refusal, too_many
from sim.studies.slo import Slo
from sim.studies.statistics import t_half_width
from sim.studies.stream import Stream, at_once, replication_seeds, same_requests

STABLE = 0.98  # of the saturation rate; above, a queue needs longer than any run to show that it stays finite
FAR = 2.0  # factor on a limit beyond which one run decides
WARMUP = 0.1  # share of a drawn stream that starts on an empty service; left out
# A run holds so many times the requests that are in the system at once, else it is all warm-up.
TURNOVERS = 10
MOST_REQUESTS = 20_000  # drawn for that
MOST_REPLICATIONS = 10
_SATURATION_RUNS = 3
_FULL = 0.98  # of the KV blocks


@dataclass(frozen=True)
class Point:
    """What was seen at one rate and size; `metrics` is None where the rate is not stable and was not run.

    `sure` is False where all replications together do not settle whether the SLOs are met.
    """

    request_rate: float
    replicas: int
    saturation_rate: float
    met: bool
    sure: bool = True
    metrics: Mapping[str, float] | None = None
    replications: int = 0
    num_requests: int = 0
    refused: int = 0
    preemptions: int = 0
    kv_usage_peak: float = 0.0

    @property
    def stable(self) -> bool:
        return self.metrics is not None

    @property
    def short_of_kv(self) -> bool:
        """Whether requests had to wait for KV blocks."""
        return self.preemptions > 0 or self.kv_usage_peak >= _FULL

    def as_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "metrics": None if self.metrics is None else dict(self.metrics),
            "stable": self.stable,
        }


@dataclass(frozen=True)
class Saturation:
    """One replica with a queue that is never empty: requests/s, and whether KV blocks ran out."""

    rate: float
    short_of_kv: bool
    num_requests: int
    refusal: Refusal | None


@dataclass
class _Seen:
    """The runs at one point so far."""

    num_requests: int
    values: list[dict[str, float]] = field(default_factory=list)
    refused: int = 0
    preemptions: int = 0
    kv_usage_peak: float = 0.0

    def add(self, result: Result, values: dict[str, float]) -> None:
        own = result.summary["sim"]
        self.values.append(values)
        self.refused += len(result.requests) - int(result.requests.completed.sum())
        self.preemptions += own["preemptions"]
        self.kv_usage_peak = max(self.kv_usage_peak, own["kv_usage_peak"])

    def mean(self, metric: str) -> float:
        return float(np.mean([values[metric] for values in self.values]))


class OperatingPoints:
    """Points of one scenario, each evaluated once."""

    def __init__(
        self,
        scenario: Scenario,
        service: Service,
        slos: Sequence[Slo],
        *,
        replications: int = MOST_REPLICATIONS,
        on_run: Callable[[str], None] | None = None,
    ) -> None:
        self.stream = Stream(scenario)
        self.evaluated: dict[tuple[float, int], Point] = {}
        self.extrapolated: dict[str, str] = {}
        self._service = service
        self._slos = slos
        self._on_run = on_run or (lambda _label: None)
        seeds = replication_seeds(scenario.seed, max(replications, 2))
        loads = [
            build_load(self.stream.scenario(self.stream.rate, 1, s, self.stream.num_requests))
            for s in seeds[:2]
        ]
        self.random = not same_requests(loads[0].trace, loads[1].trace)
        self._seeds = seeds[:replications] if self.random else seeds[:1]

    @cached_property
    def saturation(self) -> Saturation:
        """Full load on one replica; the router is taken to share the requests evenly among equal replicas."""
        count, seats = self.stream.num_requests, self._service.limits.max_num_seqs
        if self.stream.can_draw:
            count = max(count, min(8 * seats, MOST_REQUESTS))
        rates, short = [], False
        rejected: Counter[str] = Counter()
        for seed in self._seeds[:_SATURATION_RUNS]:
            scenario = self.stream.scenario(self.stream.rate, 1, seed, count)
            result = simulate(scenario, self._service, at_once(build_load(scenario)))
            self._on_run("all requests at once")
            rates.append(drain_rate(result.requests))
            own = result.summary["sim"]
            short |= own["preemptions"] > 0 or own["kv_usage_peak"] >= _FULL
            rejected.update(own["rejected"])
        refusal = too_many(rejected, len(rates) * count, self._slos, self._service)
        return Saturation(float(np.mean(rates)), short, count, refusal)

    @property
    def refusal(self) -> Refusal | None:
        """What keeps every rate and size from meeting the limits, since requests are refused; else None."""
        return self.saturation.refusal

    @property
    def max_num_seqs(self) -> int:
        return self._service.limits.max_num_seqs

    def saturation_rate(self, replicas: int) -> float:
        """Requests/s at which the queue of so many replicas stops draining."""
        return self.saturation.rate * replicas

    def at(self, rate: float, replicas: int) -> Point:
        """Evaluate a rate and a number of replicas, or return what was seen there."""
        if (rate, replicas) not in self.evaluated:
            self.evaluated[rate, replicas] = self._evaluate(rate, replicas)
        return self.evaluated[rate, replicas]

    def _evaluate(self, rate: float, replicas: int) -> Point:
        most = self.saturation_rate(replicas)
        if rate > STABLE * most * (1 + 1e-12):
            return Point(rate, replicas, most, met=False)
        seen, met = _Seen(self.stream.num_requests), None
        for seed in self._seeds:
            self._replicate(seen, rate, replicas, seed)
            met = False if self.refusal else self._decided(seen)
            if met is not None:
                break
        sure = met is not None
        if met is None:
            met = all(seen.mean(slo.metric) <= slo.limit_ms for slo in self._slos)
        return Point(
            rate,
            replicas,
            most,
            met,
            sure,
            {slo.metric: seen.mean(slo.metric) for slo in self._slos},
            len(seen.values),
            seen.num_requests,
            seen.refused,
            seen.preemptions,
            seen.kv_usage_peak,
        )

    def _replicate(self, seen: _Seen, rate: float, replicas: int, seed: int) -> None:
        """Add a run; where it is too short for a steady state, and more can be drawn, take a longer one instead."""
        while True:
            scenario = self.stream.scenario(rate, replicas, seed, seen.num_requests)
            result = simulate(scenario, self._service, build_load(scenario))
            self._on_run(f"{rate:.3g} requests/s on {replicas}")
            needed = min(math.ceil(TURNOVERS * in_system(result.requests)), MOST_REQUESTS)
            if not self.stream.can_draw or needed <= seen.num_requests or seen.values:
                break
            seen.num_requests = min(math.ceil(1.2 * needed), MOST_REQUESTS)
        self.extrapolated |= result.summary["sim"]["extrapolated"]
        seen.add(result, self._values(observe(result.requests, {})))

    def _values(self, observations: Observations) -> dict[str, float]:
        if self.stream.can_draw:
            observations = observations.since(int(len(observations) * WARMUP))
        values = {slo.metric: slo.value(observations) for slo in self._slos}
        for metric, value in values.items():
            if math.isnan(value):
                raise ConfigError(
                    f"--slo {metric}: no request has such a latency (they were all refused, or have one token only)"
                )
        return values

    def _decided(self, seen: _Seen) -> bool | None:
        """Whether the SLOs are met, once that is beyond doubt."""
        sure = True
        for slo in self._slos:
            values = [each[slo.metric] for each in seen.values]
            mean, limit = float(np.mean(values)), slo.limit_ms
            if not self.random:
                low = high = mean
            elif len(values) == 1:
                low, high = mean / FAR, mean * FAR
            else:
                half = t_half_width(values)
                low, high = mean - half, mean + half
            if low > limit:
                return False
            sure &= high <= limit
        return True if sure else None


def in_system(requests: Requests) -> float:
    """Requests in the system, averaged over the run (Little's law)."""
    return float(requests.e2el_ns.sum()) / requests.duration_ns if requests.duration_ns else 0.0


def drain_rate(requests: Requests) -> float:
    """Requests/s over the middle half of a run's completions, when neither filling nor emptying shows."""
    last = np.sort(requests.last_token_ns)
    if not last.size:
        raise ConfigError("workload: the engine refuses every request; see the notes of `servetwin run`")
    begin, end = last[last.size // 4], last[(3 * last.size) // 4]
    if begin == end:
        return last.size / (int(last[-1]) / 1e9)
    count = int(np.searchsorted(last, end, side="right") - np.searchsorted(last, begin, side="right"))
    return count / ((int(end) - int(begin)) / 1e9)
