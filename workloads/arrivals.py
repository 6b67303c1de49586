"""When requests arrive: renewal processes, ramps, modulated rates, and times of a trace at another rate.

Gaps are rounded once, to whole nanoseconds, and summed exactly. The first request arrives one gap after the
start, as vLLM's client does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workloads.bounds import LONGEST_NS, LONGEST_S, MOST_REQUESTS
from workloads.errors import ConfigError
from workloads.trace import NS_PER_S, Int64

Float64 = NDArray[np.float64]

_CHUNK = 4096
_TINY = 1e-300


def rounded(values: Float64) -> Int64:
    """Return the nearest whole numbers."""
    whole: Int64 = np.rint(values).astype(np.int64)
    return whole


def summed(gaps_ns: Float64) -> Int64:
    """Return times from gaps, each rounded once; what lies beyond the longest time is put there."""
    within = int(np.searchsorted(np.cumsum(gaps_ns), LONGEST_NS))
    times = np.full(gaps_ns.size, LONGEST_NS, dtype=np.int64)
    times[:within] = np.cumsum(rounded(gaps_ns[:within]))
    return times


def checked(times: Int64) -> Int64:
    """Return the times, all of which must lie within the longest."""
    if times.size and times[-1] >= LONGEST_NS:
        raise ConfigError(
            f"workload.request_rate: the last of {times.size} requests would arrive after {LONGEST_S:g} s (63 years), "
            "where the clock ends; give a higher rate or fewer requests"
        )
    return times


def _check_until(size: int) -> None:
    if size > 2 * MOST_REQUESTS:
        raise ConfigError(
            f"workload.duration_s: more than {2 * MOST_REQUESTS} requests arrive before it; give less, or num_requests"
        )


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
        return checked(summed(self._gaps_ns(rng, count)))

    def until(self, rng: np.random.Generator, duration_ns: int) -> Int64:
        """Return all arrivals before `duration_ns`: a beginning of what `first` returns."""
        if math.isinf(self.rate):
            raise ConfigError("workload.duration_s: an infinite request_rate has no end; give num_requests")
        times = summed(self._gaps_ns(rng, _CHUNK))
        while times[-1] < duration_ns:
            _check_until(times.size)
            times = np.concatenate([times, times[-1] + summed(self._gaps_ns(rng, times.size))])
        return times[: np.searchsorted(times, duration_ns)]

    def _gaps_ns(self, rng: np.random.Generator, count: int) -> Float64:
        if math.isinf(self.rate):
            return np.zeros(count)
        return unit_gaps(rng, count, self.burstiness) * (NS_PER_S / self.rate)


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
        return checked(self._clock(np.cumsum(unit_gaps(rng, count, self.burstiness))))

    def until(self, rng: np.random.Generator, duration_ns: int) -> Int64:
        """Return all arrivals before `duration_ns`: a beginning of what `first` returns."""
        gaps = unit_gaps(rng, _CHUNK, self.burstiness)
        while (times := self._clock(np.cumsum(gaps)))[-1] < duration_ns:
            _check_until(times.size)
            gaps = np.concatenate([gaps, unit_gaps(rng, gaps.size, self.burstiness)])
        return times[: np.searchsorted(times, duration_ns)]

    def expected_s(self, requests: float) -> float:
        """Return the seconds after which so many requests are expected."""
        return float(self._seconds(np.array([requests]))[0])

    def _clock(self, requests: Float64) -> Int64:
        seconds = self._seconds(requests)
        if self.tick_s:
            seconds = np.floor(seconds / self.tick_s) * self.tick_s
        return rounded(np.minimum(seconds * NS_PER_S, LONGEST_NS))

    def _seconds(self, requests: Float64) -> Float64:
        return _modulated_s(requests, _expected(self.rate, self.step_s, self.relative), self.step_s)


@dataclass(frozen=True)
class Bursts:
    """Requests in bursts: gaps of any law, correlated, with `relative` times the mean rate in each step of `step_s`.

    scores, gaps  the law: gaps (in mean gaps, 1/rate) at normal scores; their logarithm is linear in between
    level_share   of the variance of a score, the part that is a level shared by requests in a row
    level_hold    requests that share a level, on average; the lengths are geometric
    slope         what a score rises by with the logarithm of `relative`: below 0, gaps are shorter in busy steps

    Every step has as many requests as it should, so that a rate is met exactly. Gaps up to the mean are kept as
    drawn: a busy minute has more bursts, not denser ones. The time that they leave is idle: what longer gaps have
    beyond the mean is cut where the step would overflow, and what remains lies before and after, at random.
    """

    rate: float
    step_s: float
    relative: tuple[float, ...]
    scores: tuple[float, ...]
    gaps: tuple[float, ...]
    level_share: float
    level_hold: float
    slope: float

    def first(self, rng: np.random.Generator, count: int) -> Int64:
        """Return the first `count` arrivals."""
        cycles = math.ceil((count + 1) / _expected(self.rate, self.step_s, self.relative)[-1])
        ends = self._ends(cycles * len(self.relative))
        return checked(self._draw(rng, ends[: np.searchsorted(ends, count) + 1])[:count])

    def until(self, rng: np.random.Generator, duration_ns: int) -> Int64:
        """Return all arrivals before `duration_ns`: a beginning of what `first` returns."""
        times = self._draw(rng, self._ends(math.ceil(duration_ns / (self.step_s * NS_PER_S)) + 1))
        return times[: np.searchsorted(times, duration_ns)]

    def expected_s(self, requests: float) -> float:
        """Return the seconds after which so many requests are expected."""
        knots = _expected(self.rate, self.step_s, self.relative)
        return float(_modulated_s(np.array([requests]), knots, self.step_s)[0])

    def _ends(self, steps: int) -> Int64:
        """Requests until the end of each of so many steps."""
        knots = _expected(self.rate, self.step_s, self.relative)
        cycles, rest = np.divmod(np.arange(1, steps + 1), len(self.relative))
        return np.maximum.accumulate(rounded(cycles * knots[-1] + knots[rest]))

    def _draw(self, rng: np.random.Generator, last: Int64) -> Int64:
        """Arrivals of steps until whose ends so many requests come in all; four random numbers a request."""
        counts = np.diff(last, prepend=0)
        uniform = rng.random((int(last[-1]), 4))
        step = np.repeat(np.arange(counts.size), counts)
        opens = np.diff(step, prepend=-1) > 0
        gaps = np.where(opens, 0.0, self._gaps(uniform, step)) / self.rate
        excess = np.maximum(gaps - 1 / self.rate, 0)
        idle = np.bincount(step, excess, counts.size)
        busy = np.bincount(step, gaps, counts.size) - idle
        room = np.clip((self.step_s - busy) / np.maximum(idle, _TINY), 0, 1)
        gaps -= excess * (1 - room)[step]
        gaps *= np.minimum(self.step_s / np.maximum(busy, _TINY), 1)[step]
        slack = np.maximum(self.step_s - np.bincount(step, gaps, counts.size), 0)
        at = np.cumsum(gaps)
        begin = step[opens] * self.step_s + uniform[opens, 3] * slack[step[opens]] - at[opens]
        times = np.repeat(begin, counts[counts > 0]) + at
        return np.maximum.accumulate(rounded(np.minimum(times * NS_PER_S, LONGEST_NS)))

    def _gaps(self, uniform: Float64, step: Int64) -> Float64:
        relative = np.asarray(self.relative)
        logs = np.log(np.maximum(relative, _TINY))
        logs = self.slope * (logs - np.average(logs, weights=relative))
        spread = 1 - self.level_share - float(np.average(logs**2, weights=relative))
        radius = np.sqrt(-2 * np.log1p(-uniform[:, 0]))
        angle = 2 * np.pi * uniform[:, 1]
        fresh = uniform[:, 2] * self.level_hold < 1
        fresh[:1] = True
        level = (radius * np.cos(angle))[fresh][np.cumsum(fresh) - 1]
        own = radius * np.sin(angle)
        score = logs[step % relative.size] + math.sqrt(self.level_share) * level
        score += math.sqrt(max(spread, 0.0)) * own
        gaps: Float64 = np.exp(np.interp(score, self.scores, np.log(self.gaps)))
        return gaps


def _expected(rate: float, step_s: float, relative: tuple[float, ...]) -> Float64:
    """Return how many requests are expected from the start to the ends of the steps."""
    knots: Float64 = np.cumsum([0.0, *relative]) / np.mean(relative) * step_s * rate
    return knots


def _modulated_s(requests: Float64, knots: Float64, step_s: float) -> Float64:
    """Return the seconds after which so many requests are expected, from what is expected at the ends of steps."""
    cycles, rest = np.divmod(requests, knots[-1])
    within: Float64 = np.interp(rest, knots, np.arange(knots.size) * step_s)
    seconds: Float64 = cycles * (step_s * (knots.size - 1)) + within
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
        return checked(summed(gaps))


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
    return checked(rounded(np.minimum(arrival_ns.astype(np.float64) * (target / last), LONGEST_NS)))
