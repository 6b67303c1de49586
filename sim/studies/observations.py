"""What studies see of a run: one row per request in the order of the trace, and metrics of any selection of rows.

The definitions are those of `sim.metrics`; with every request counted once the numbers are the same. A rejected
request has no latency, and is not good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.metrics import Requests

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

LATENCIES = ("ttft", "tpot", "e2el")
RATES = ("request_throughput", "output_throughput", "request_goodput")
METRICS = (
    *(f"{statistic}_{name}_ms" for name in LATENCIES for statistic in ("mean", "median", "p90", "p99")),
    "mean_itl_ms",
    *RATES,
)
_LATENCY_METRIC = re.compile(r"(mean|median|p\d{1,2}(?:\.\d+)?)_(ttft|tpot|e2el)_ms")


def higher_is_better(metric: str) -> bool:
    """Rates are; latencies are not."""
    return metric in RATES


def split_metric(metric: str) -> tuple[str, str] | None:
    """Take `p99_ttft_ms` apart into statistic and latency; None where it is not a statistic of a latency."""
    match = _LATENCY_METRIC.fullmatch(metric)
    return (match[1], match[2]) if match else None


@dataclass(frozen=True, eq=False)
class Observations:
    """The requests of a run, in the order of the trace; NaN where a request has no such latency.

    elapsed_s  the request's share of the run's duration, so that a rate is a ratio of two sums over requests, and can
               be resampled like one
    """

    ttft_ms: Float64
    tpot_ms: Float64
    e2el_ms: Float64
    output_tokens: Int64  # 0 where rejected
    completed: NDArray[np.bool_]
    good: NDArray[np.bool_]
    elapsed_s: Float64

    def __len__(self) -> int:
        return int(self.completed.size)

    def since(self, first: int) -> Observations:
        """Leave out the requests before `first`."""
        return Observations(*(getattr(self, field.name)[first:] for field in fields(self)))

    def estimate(self, weights: Int64) -> Float64:
        """All of METRICS with request i counted `weights[i]` times; NaN where there is nothing to count."""
        values: list[float] = []
        for name in LATENCIES:
            values += self._sorted[name].statistics(weights, ("mean", "median", "p90", "p99"))
        elapsed = float(weights @ self.elapsed_s)
        values += [
            _ratio(float(weights @ self._decode_ms), float(weights @ self._gaps)),
            _ratio(float(weights @ self.completed), elapsed),
            _ratio(float(weights @ self.output_tokens), elapsed),
            _ratio(float(weights @ self.good), elapsed),
        ]
        return np.array(values)

    def latency(self, statistic: str, name: str) -> float:
        """One statistic of one latency [ms] over all requests that have it; NaN where none has."""
        return self._sorted[name].statistics(np.ones(len(self), dtype=np.int64), (statistic,))[0]

    @cached_property
    def _sorted(self) -> dict[str, _Sorted]:
        return {name: _Sorted.of(getattr(self, f"{name}_ms")) for name in LATENCIES}

    @cached_property
    def _gaps(self) -> Int64:
        return np.maximum(self.output_tokens - 1, 0)

    @cached_property
    def _decode_ms(self) -> Float64:
        return np.where(self.completed, self.e2el_ms - self.ttft_ms, 0.0)


def observe(requests: Requests, slo_ms: Mapping[str, float]) -> Observations:
    """Arrange a run's records by request; without limits in `slo_ms` no request counts as good."""
    done = requests.completed

    def milliseconds(values_ns: Int64 | Float64) -> Float64:
        column = np.full(len(requests), np.nan)
        column[done] = values_ns / 1e6
        return column

    good = np.zeros(len(requests), dtype=np.bool_)
    good[done] = requests.good(slo_ms) if slo_ms else False
    return Observations(
        ttft_ms=milliseconds(requests.ttft_ns),
        tpot_ms=milliseconds(requests.tpot_ns),
        e2el_ms=milliseconds(requests.e2el_ns),
        output_tokens=np.where(done, requests.columns["output_tokens"], 0),
        completed=done,
        good=good,
        elapsed_s=_shares_ns(requests) / 1e9,
    )


def _shares_ns(requests: Requests) -> Float64:
    """Split the duration among the requests, by what set the pace.

    Arrivals, where the service kept up: each request has the gap before it, which is the same in all arms, and an
    equal part of the time after the last arrival. Departures, where that tail exceeds a quarter of the arrivals' span:
    each request has the gap before its own last token.
    """
    arrival, last = requests.columns["arrival_ns"], requests.columns["last_token_ns"]
    shares = np.zeros(len(requests))
    if not len(requests):
        return shares
    span = int(arrival[-1])
    tail = (requests.duration_ns or span) - span
    if tail <= span / 4:
        return np.diff(arrival, prepend=0) + tail / len(requests)
    order = np.flatnonzero(requests.completed)
    order = order[np.argsort(last[order], kind="stable")]
    shares[order] = np.diff(last[order], prepend=0)
    return shares


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Values in order of size, so that weighted percentiles cost one sum."""

    order: Int64
    values: Float64

    @classmethod
    def of(cls, values: Float64) -> _Sorted:
        known = np.flatnonzero(~np.isnan(values))
        order = known[np.argsort(values[known], kind="stable")]
        return cls(order, values[order])

    def statistics(self, weights: Int64, names: Sequence[str]) -> list[float]:
        """Mean, median or pNN, percentiles as NumPy's linear ones over repeated values."""
        chosen = weights[self.order]
        upto = np.cumsum(chosen)
        total = int(upto[-1]) if upto.size else 0
        if total == 0:
            return [np.nan] * len(names)
        return [
            float(chosen @ self.values) / total if name == "mean" else self._percentile(upto, total, name)
            for name in names
        ]

    def _percentile(self, upto: Int64, total: int, name: str) -> float:
        position = (50.0 if name == "median" else float(name[1:])) / 100 * (total - 1)
        low = int(position)
        at = np.searchsorted(upto, (low, min(low + 1, total - 1)), side="right")
        below, above = float(self.values[at[0]]), float(self.values[at[1]])
        return below + (above - below) * (position - low)


def _ratio(amount: float, of: float) -> float:
    return amount / of if of else np.nan
