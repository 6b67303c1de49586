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
from sim.studies.statistics import resampled_deviation

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


def percentile_of(statistic: str) -> float:
    """50 for the median, NN for pNN."""
    return 50.0 if statistic == "median" else float(statistic[1:])


@dataclass(frozen=True, eq=False)
class Observations:
    """The requests of a run, in the order of the trace; NaN where a request has no such latency.

    pace_s  the time before this request, by what set the pace: before its arrival where the service kept up, before
            its own last token where it did not
    lag_s   how far, at its arrival, the last token of all requests so far lay ahead: how long the run would have lasted
            after its last arrival, had this been the last; zero where departures set the pace
    """

    ttft_ms: Float64
    tpot_ms: Float64
    e2el_ms: Float64
    output_tokens: Int64  # 0 where rejected
    completed: NDArray[np.bool_]
    good: NDArray[np.bool_]
    pace_s: Float64
    lag_s: Float64

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
        times = weights.astype(np.float64)
        decode_ms, gaps, completed, tokens, good = (_dot(column, times) for column in self._counted)
        elapsed = self._elapsed_s(times)
        return np.array(
            [
                *values,
                _ratio(decode_ms, gaps),
                _ratio(completed, elapsed),
                _ratio(tokens, elapsed),
                _ratio(good, elapsed),
            ]
        )

    def latency(self, statistic: str, name: str) -> float:
        """One statistic of one latency [ms] over all requests that have it; NaN where none has."""
        return self._sorted[name].statistics(np.ones(len(self), dtype=np.int64), (statistic,))[0]

    def latency_of_all(self, statistic: str, name: str) -> float:
        """The same, but a refused request counts in a percentile as slower than every other.

        A percentile that falls among the refused is the greatest latency seen; a mean is of those that have it.
        """
        refused = len(self) - int(self.completed.sum())
        values = self._sorted[name].values
        if statistic == "mean" or not refused or not values.size:
            return self.latency(statistic, name)
        rank = percentile_of(statistic) / 100 * (values.size + refused - 1)
        return float(np.interp(rank, np.arange(values.size), values))

    def _elapsed_s(self, times: Float64) -> float:
        """The run's duration, resampled as the requests are.

        What comes after the last arrival is one draw from the lags that an end at any other request would have left.
        It says nothing of a service that keeps up, whose rate is that of the arrivals; so it counts as chance, with
        its whole root mean square. The gaps between arrivals are the same in every arm.
        """
        if not len(self):
            return 0.0
        mean_lag = float(self.lag_s.mean())
        chance = (_dot(self.lag_s, times) - mean_lag * float(times.sum())) * self._chance_scale
        return _dot(self.pace_s, times) + float(self.lag_s[-1]) + chance

    @cached_property
    def _chance_scale(self) -> float:
        """From the resampled sum of the lags, which a block of neighbours moves by much, to one draw of them."""
        deviation = resampled_deviation(self.lag_s)
        return float(np.sqrt(np.square(self.lag_s).mean())) / deviation if deviation else 0.0

    @cached_property
    def _sorted(self) -> dict[str, _Sorted]:
        return {name: _Sorted.of(getattr(self, f"{name}_ms")) for name in LATENCIES}

    @cached_property
    def _counted(self) -> tuple[Float64, ...]:
        """Decode time, gaps between tokens, completed, output tokens, good."""
        decode_ms = np.where(self.completed, self.e2el_ms - self.ttft_ms, 0.0)
        counts = (np.maximum(self.output_tokens - 1, 0), self.completed, self.output_tokens, self.good)
        return decode_ms, *(column.astype(np.float64) for column in counts)


def observe(requests: Requests, slo_ms: Mapping[str, float]) -> Observations:
    """Arrange a run's records by request; without limits in `slo_ms` no request counts as good."""
    done = requests.completed

    def milliseconds(values_ns: Int64 | Float64) -> Float64:
        column = np.full(len(requests), np.nan)
        column[done] = values_ns / 1e6
        return column

    good = np.zeros(len(requests), dtype=np.bool_)
    good[done] = requests.good(slo_ms) if slo_ms else False
    pace_ns, lag_ns = _pace_and_lag_ns(requests)
    return Observations(
        ttft_ms=milliseconds(requests.ttft_ns),
        tpot_ms=milliseconds(requests.tpot_ns),
        e2el_ms=milliseconds(requests.e2el_ns),
        output_tokens=np.where(done, requests.columns["output_tokens"], 0),
        completed=done,
        good=good,
        pace_s=pace_ns / 1e9,
        lag_s=lag_ns / 1e9,
    )


def _pace_and_lag_ns(requests: Requests) -> tuple[Float64, Float64]:
    """Arrivals set the pace unless the run lasts longer after them than a quarter of their span.

    Nor do they where they follow from answers, and so come in another order than that of the trace.
    """
    count = len(requests)
    arrival, last = requests.columns["arrival_ns"], requests.columns["last_token_ns"]
    span = int(arrival[-1]) if count else 0
    own_times = not np.any(np.diff(arrival) < 0)
    done = np.flatnonzero(requests.completed)
    if own_times and requests.duration_ns - span <= span / 4:
        ahead = np.maximum.accumulate(np.maximum(last, 0)) if done.size else arrival
        return np.diff(arrival, prepend=0).astype(np.float64), (ahead - arrival).astype(np.float64)
    order = done[np.argsort(last[done], kind="stable")]
    pace = np.zeros(count)
    pace[order] = np.diff(last[order], prepend=0)
    return pace, np.zeros(count)


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
        shares = [percentile_of(name) for name in names if name != "mean"]
        positions = np.array(shares) / 100 * (total - 1)
        low = positions.astype(np.int64)
        at = np.searchsorted(upto, np.concatenate([low, np.minimum(low + 1, total - 1)]), side="right")
        below, above = self.values[at].reshape(2, -1)
        quantiles = iter((below + (above - below) * (positions - low)).tolist())
        return [
            _dot(self.values, chosen.astype(np.float64)) / total if name == "mean" else next(quantiles)
            for name in names
        ]


def _dot(one: Float64, other: Float64) -> float:
    """A dot product on one core: at these sizes the threads of a BLAS cost more than they save."""
    return float(np.einsum("i,i->", one, other))


def _ratio(amount: float, of: float) -> float:
    return amount / of if of else np.nan
