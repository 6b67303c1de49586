"""The harness: it alone warms up, times, flushes and stops; benchmarks only say what to call.

    sample     seconds a call, over a batch of calls between two events (one graph where the device has graphs)
    summary    median, an interval for it by order statistics, and noise = half its width over the median
    stop       once the noise is low enough, after enough samples; else when samples or time have run out

The interval of the median takes no distribution for granted: of n sorted samples, the k-th and the (n+1-k)-th
enclose the median with probability 1 - 2 P(Binomial(n, 1/2) < k) (David and Nagaraja, Order Statistics, 2003,
section 7.1). It holds for a number of samples fixed beforehand; a rule that looks again and again stops a little
early, which `min_samples` bounds. NVBench stops likewise, on the noise of the mean.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

import numpy as np

from hwbackend.device import Call, Condition, Device

Stopped = Literal["noise", "samples", "budget"]
_MOST_CALLS: Final = 4096  # in a sample
_SLOW_CLOCK: Final = 0.75  # of the highest, as NVBench discards samples by default
DISTURBED: Final = 0.1
"""Share of the machine's cores: where others had more, it is worth a word."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When to stop, and how long a sample is."""

    min_samples: int = 5
    max_samples: int = 200
    relative_noise: float = 0.02
    """Half the width of the interval, over the median."""
    confidence: float = 0.95
    budget_s: float = 0.5
    """Wall time of one measurement, warm-up and flushes included; `min_samples` are taken all the same."""
    warmups: int = 1
    least_sample_s: float = 100e-6
    """Shorter calls are batched until a sample takes so long."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call moves and computes."""

    num_bytes: float
    flops: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """Calls ready to be timed.

    calls       alike but for the memory they touch: they are taken in turn, so that none finds its data in a cache
    flush       push the caches out before every sample, which then is one call
    graph       whether the calls may be captured into a graph
    before      queued work that a sample is to run beside, or a state that it needs; not timed
    after       waits for it, or undoes it; not timed
    """

    calls: tuple[Call, ...]
    flush: bool = False
    graph: bool = True
    before: Call | None = None
    after: Call | None = None
    close: Call | None = None
    """Releases what `prepare` opened beyond memory: side streams, files."""
    once: bool = False
    """A call can be made once only (first launch): as many samples as calls, and no warm-up."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the samples say; `low_s` to `high_s` encloses the median with probability `confidence`."""

    samples: int
    median_s: float
    low_s: float
    high_s: float
    confidence: float
    calls_per_sample: int
    stopped: Stopped
    throttled: bool
    others_share: float
    """Of the machine's cores, busy with other work meanwhile."""

    @property
    def relative_noise(self) -> float:
        return (self.high_s - self.low_s) / (2 * self.median_s)

    @property
    def disturbed(self) -> bool:
        return self.throttled or self.others_share > DISTURBED


@dataclass(frozen=True)
class Measurement:
    """All samples [s a call], in the order in which they were taken, and their summary."""

    samples_s: tuple[float, ...]
    summary: Summary


def measure(
    device: Device, prepared: Prepared, rules: Rules, *, clock: Callable[[], float] = perf_counter
) -> Measurement:
    """Time `prepared` on `device` until the rules say stop; `clock` is the wall's, for the budget."""
    began = clock()
    batch = _Batch(device, prepared)
    if not prepared.once:
        batch.warm_up(rules)
    before = device.condition()
    samples: list[float] = []
    stopped: Stopped | None = None
    while stopped is None:
        samples.append(batch.sample())
        stopped = _stop(samples, rules, clock() - began)
        if prepared.once and len(samples) == len(prepared.calls):
            stopped = stopped or "samples"
    low, high, confidence = median_interval(samples, rules.confidence)
    throttled, others = disturbance(before, device.condition())
    summary = Summary(
        samples=len(samples),
        median_s=float(np.median(samples)),
        low_s=low,
        high_s=high,
        confidence=confidence,
        calls_per_sample=batch.size,
        stopped=stopped,
        throttled=throttled,
        others_share=others,
    )
    return Measurement(tuple(samples), summary)


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Lowest, highest and attained confidence of the narrowest interval that has at least the asked one.

    Few samples cannot attain it: then all of them are the interval, with the confidence that they have.
    """
    ordered, count = sorted(samples), len(samples)
    rank, attained = 1, 1.0 - 2.0 * _below(1, count)
    while rank + 1 <= (count + 1) // 2 and 1.0 - 2.0 * _below(rank + 1, count) >= confidence:
        rank += 1
        attained = 1.0 - 2.0 * _below(rank, count)
    return ordered[rank - 1], ordered[count - rank], max(0.0, attained)


def disturbance(before: Condition, after: Condition) -> tuple[bool, float]:
    """Whether the clock was held back between two moments, and what share of the cores others had."""
    slow = (
        after.clock_mhz is not None
        and after.max_clock_mhz is not None
        and after.clock_mhz < _SLOW_CLOCK * after.max_clock_mhz
    )
    throttled = slow or bool(after.throttle_reasons) or after.throttle_events > before.throttle_events
    offered = (after.wall_ns - before.wall_ns) * (os.cpu_count() or 1)
    others = (after.busy_ns - before.busy_ns) - (after.own_ns - before.own_ns)
    return throttled, min(1.0, max(0.0, others / offered)) if offered > 0 else 0.0


def _stop(samples: list[float], rules: Rules, elapsed_s: float) -> Stopped | None:
    if len(samples) < rules.min_samples:
        return None
    low, high, attained = median_interval(samples, rules.confidence)
    if attained >= rules.confidence and high - low <= 2 * rules.relative_noise * float(np.median(samples)):
        return "noise"
    if len(samples) >= rules.max_samples:
        return "samples"
    return "budget" if elapsed_s >= rules.budget_s else None


def _below(rank: int, count: int) -> float:
    """P(Binomial(count, 1/2) < rank)."""
    return sum(math.comb(count, successes) for successes in range(rank)) / 2.0**count


class _Batch:
    """The calls of a sample: one after the other, or as a graph."""

    def __init__(self, device: Device, prepared: Prepared) -> None:
        self._device, self._prepared = device, prepared
        self._replay: Call | None = None
        self._next = 0
        self.size = 1

    def warm_up(self, rules: Rules) -> None:
        """Call often enough, see how long a call takes, and size the batch by it."""
        for _ in range(rules.warmups):
            self.sample()
        if self._prepared.flush:
            return
        alone = max(self.sample(), 1e-9)
        self.size = min(_MOST_CALLS, max(1, math.ceil(rules.least_sample_s / alone)))
        if self._device.has_graphs and self._prepared.graph:
            turns = len(self._prepared.calls)
            self.size = turns * math.ceil(self.size / turns)  # a graph repeats itself: all turns are in it
            calls = [self._turn() for _ in range(self.size)]
            self._replay = self._device.capture(calls).replay
            self.sample()

    def sample(self) -> float:
        device, prepared = self._device, self._prepared
        calls = [self._replay] if self._replay else [self._turn() for _ in range(self.size)]
        if prepared.flush:
            device.flush()
        if prepared.before is not None:
            prepared.before()
        start = device.main.record()
        for call in calls:
            device.main.run(call)
        end = device.main.record()
        end.synchronize()
        if prepared.after is not None:
            prepared.after()
        return device.elapsed_s(start, end) / self.size

    def _turn(self) -> Call:
        call = self._prepared.calls[self._next % len(self._prepared.calls)]
        self._next += 1
        return call
