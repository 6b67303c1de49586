"""When requests arrive: renewal processes, ramps, modulated rates, and times of a trace at another rate.

Gaps are rounded once, to whole nanoseconds, and summed exactly. The first request arrives one gap after the
start, as vLLM's client does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.errors import ConfigError
from workloads.trace import NS_PER_S, Int64

Float64 = NDArray[np.float64]

_CHUNK = 4096


class ArrivalProcess(Protocol):
    """Gives arrival times in ns, the first `count` or all before a time."""

    def first(self, rng: np.random.Generator, count: int) -> Int64:
        """Return the first `count` arrivals."""

    def until(self, rng: np.random.Generator, duration_ns: int) -> Int64:
        """Return all arrivals before `duration_ns`."""


def rounded(values: Float64) -> Int64:
    """Return the nearest whole numbers."""
    whole: Int64 = np.rint(values).astype(np.int64)
    return whole


def unit_gaps(rng: np.random.Generator, count: int, burstiness: float) -> Float64:
    """Return gamma gaps of mean 1 and CV 1/sqrt(burstiness); constant ones at infinity."""
    if math.isinf(burstiness):
        return np.ones(count)
    return rng.gamma(burstiness, 1 / burstiness, count)


@dataclass(frozen=True)
class Renewal:
    """Independent gamma gaps of shape k = burstiness, scale 1/(rate k); k = 1 is Poisson. Requests/s."""

    rate: float
    burstiness: float = 1.0

    def first(self, rng: np.random.Generator, count: int) -> Int64:
        """Return the first `count` arrivals; all at 0 where the rate is infinite."""
        return np.cumsum(self._gaps_ns(rng, count))

    def until(self, rng: np.random.Generator, duration_ns: int) -> Int64:
        """Return all arrivals before `duration_ns`: a beginning of what `first` returns."""
        if math.isinf(self.rate):
            raise ConfigError("workload.duration_s: an infinite request_rate has no end; give num_requests")
        times = np.cumsum(self._gaps_ns(rng, _CHUNK))
        while times[-1] < duration_ns:
            times = np.concatenate([times, times[-1] + np.cumsum(self._gaps_ns(rng, times.size))])
        return times[: np.searchsorted(times, duration_ns)]

    def _gaps_ns(self, rng: np.random.Generator, count: int) -> Int64:
        if math.isinf(self.rate):
            return np.zeros(count, dtype=np.int64)
        gaps = unit_gaps(rng, count, self.burstiness) * (NS_PER_S / self.rate)
        return rounded(gaps)


@dataclass(frozen=True)
class Modulated:
    """A renewal process whose rate follows `relative` (mean 1), one value per `step_s`, again and again.

    The process runs in operational time, in which its rate is constant, and is mapped back to the clock.
    Times fall on multiples of `tick_s` (0: anywhere), for sources whose clock is that coarse.
    """

    rate: float
    burstiness: float
    step_s: float
    relative: tuple[float, ...]
    tick_s: float = 0.0

    def first(self, rng: np.random.Generator, count: int) -> Int64:
        """Return the first `count` arrivals."""
        return self._clock(np.cumsum(unit_gaps(rng, count, self.burstiness)))

    def until(self, rng: np.random.Generator, duration_ns: int) -> Int64:
        """Return all arrivals before `duration_ns`: a beginning of what `first` returns."""
        gaps = unit_gaps(rng, _CHUNK, self.burstiness)
        while (times := self._clock(np.cumsum(gaps)))[-1] < duration_ns:
            gaps = np.concatenate([gaps, unit_gaps(rng, gaps.size, self.burstiness)])
        return times[: np.searchsorted(times, duration_ns)]

    def expected_s(self, requests: float) -> float:
        """Return the seconds after which so many requests are expected."""
        return float(self._seconds(np.array([requests]))[0])

    def _clock(self, requests: Float64) -> Int64:
        seconds = self._seconds(requests)
        if self.tick_s:
            seconds = np.floor(seconds / self.tick_s) * self.tick_s
        return rounded(seconds * NS_PER_S)

    def _seconds(self, requests: Float64) -> Float64:
        relative = np.asarray(self.relative) / np.mean(self.relative)
        knots = np.concatenate([[0.0], np.cumsum(relative) * self.step_s * self.rate])
        cycles, rest = np.divmod(requests, knots[-1])
        period_s = self.step_s * relative.size
        within: Float64 = np.interp(rest, knots, np.arange(knots.size) * self.step_s)
        seconds: Float64 = cycles * period_s + within
        return seconds


@dataclass(frozen=True)
class Ramp:
    """vLLM's ramp-up: request i of n is drawn at the rate i/(n-1) of the way. Rates in requests/s."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float
    burstiness: float = 1.0

    def first(self, rng: np.random.Generator, count: int) -> Int64:
        """Return `count` arrivals, the last of them at the end rate."""
        progress = np.arange(count) / max(count - 1, 1)
        if self.strategy == "linear":
            rates = self.start_rps + (self.end_rps - self.start_rps) * progress
        else:
            rates = self.start_rps * (self.end_rps / self.start_rps) ** progress
        gaps = unit_gaps(rng, count, self.burstiness) / rates * NS_PER_S
        return np.cumsum(rounded(gaps))


def mean_rate(arrival_ns: Int64) -> float:
    """Return requests per second from the start to the last arrival; infinite where that is no time."""
    return arrival_ns.size * NS_PER_S / float(arrival_ns[-1]) if arrival_ns[-1] else math.inf


def at_rate(arrival_ns: Int64, rate: float) -> Int64:
    """Stretch times to `rate` requests/s (the last arrival at n/rate); proportions of gaps stay."""
    if math.isinf(rate):
        return np.zeros_like(arrival_ns)
    last = int(arrival_ns[-1])
    if last == 0:
        raise ConfigError(
            "workload.request_rate: all requests arrive at once, which no rate can stretch; give burstiness"
        )
    target = arrival_ns.size / rate * NS_PER_S
    return rounded(arrival_ns.astype(np.float64) * (target / last))
