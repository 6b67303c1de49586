"""From columns of result files to the few numbers that a figure draws. Arrays in, arrays out; times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Columns = Mapping[str, Float64]

QUANTILES: Float64 = np.concatenate([np.linspace(0, 99, 400, endpoint=False), np.linspace(99, 100, 101)])
"""Where a CDF is drawn [%]: 501 points, denser in the tail."""

COARSER = 4
"""Buckets of the timeline in one of a rate."""

BEFORE_FIRST_TOKEN = ("gateway", "tokenise", "queue", "prefix_load", "prefill")
"""Stages that lie before the first token as a whole."""


@dataclass(frozen=True, eq=False)
class Band:
    """A series from 0 on in equal buckets of time: its mean in each, and the least and greatest value there."""

    width_s: float
    mean: Float64
    low: Float64
    high: Float64


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric at request rates in ascending order, and whether every limit was met there."""

    rates: Float64
    values: Float64
    met: NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Mean seconds per stage of a group of requests, in the order in which a request passes them."""

    group: str
    requests: int
    stages: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.stages.values())


def quantiles(values: Float64) -> Float64:
    """Values at QUANTILES, by the same linear rule as the percentiles of the summary; empty where there are none."""
    values = values[np.isfinite(values)]
    return np.percentile(values, QUANTILES) if values.size else np.zeros(0)


def wide(values: Float64) -> bool:
    """Whether values span so much that a linear axis would hide most of them."""
    values = values[np.isfinite(values)]
    if not values.size or values.min() <= 0:
        return False
    low, high = np.percentile(values, [1, 99.9])
    return bool(high > 30 * low)


def total_over_replicas(t: Float64, replica: Float64, values: Float64) -> tuple[Float64, Float64]:
    """Sum of step functions, one per replica, each starting at 0: times of change and the total from then on."""
    if not t.size:
        return t, values
    order = np.lexsort((t, replica))
    t, replica, values = t[order], replica[order], values[order]
    change = np.diff(values, prepend=0.0)
    first = np.diff(replica, prepend=np.nan) != 0
    change[first] = values[first]
    by_time = np.argsort(t, kind="stable")
    times, totals = t[by_time], np.cumsum(change[by_time])
    last = np.append(times[1:] != times[:-1], True)  # of changes at one instant only the outcome counts
    return times[last], totals[last]


def band(times: Float64, values: Float64, edges: Float64) -> Band:
    """A step function over buckets between `edges`; it is 0 before its first change and holds its last value."""
    times, values = np.append(-np.inf, times), np.append(0.0, values)
    held = values[np.searchsorted(times, edges, side="right") - 1]
    inside = (times > edges[0]) & (times < edges[-1]) & ~np.isin(times, edges)
    at = np.concatenate([edges[:-1], times[inside]])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.concatenate([held[:-1], values[inside]])[order]
    starts = np.searchsorted(at, edges[:-1])
    area = level * np.diff(at, append=edges[-1])
    return Band(
        float(edges[1] - edges[0]),
        np.add.reduceat(area, starts) / np.diff(edges),
        np.minimum.reduceat(level, starts),
        np.maximum.reduceat(level, starts),
    )


def rate(timeline: Columns, tokens: Float64, edges: Float64, instants: Float64 | None = None) -> Band:
    """Mean rate in each bucket of what rows do evenly over their time, and of single things done at `instants`."""
    done = np.zeros(edges.size)
    for index in np.unique(timeline["replica"]):
        mine = timeline["replica"] == index
        start = timeline["t_s"][mine]
        knots = np.stack([start, start + timeline["duration_s"][mine]], axis=1).ravel()
        upto = np.cumsum(tokens[mine])
        counts = np.stack([upto - tokens[mine], upto], axis=1).ravel()
        done += np.interp(edges, np.maximum.accumulate(knots), counts)
    if instants is not None:
        done += np.searchsorted(np.sort(instants), edges, side="right")
        done[0] -= np.count_nonzero(instants <= edges[0])  # a token at the very start is in the first bucket
    rates = np.diff(done) / np.diff(edges)
    return Band(float(edges[1] - edges[0]), rates, rates, rates)


def timeline_bands(
    timeline: Columns, first_tokens_s: Float64, usable_blocks: int, end_s: float, buckets: int
) -> dict[str, Band]:
    """The panels of the timeline: queue, batch size and KV use as they were, tokens as rates.

    KV use is relative to the blocks of all replicas in `timeline`. Rates take buckets COARSER times as wide, since
    over less than a few engine steps they say more about the edges of the buckets than about the engine.
    """
    edges = np.linspace(0.0, end_s, buckets + 1)
    coarse = edges[::COARSER]
    capacity = usable_blocks * max(1, np.unique(timeline["replica"]).size)
    bands = {}
    for name, column, scale in (
        ("waiting", "waiting", 1.0),
        ("running", "running", 1.0),
        ("kv_use", "kv_used_blocks", 100.0 / capacity),
    ):
        times, totals = total_over_replicas(timeline["t_s"], timeline["replica"], timeline[column])
        bands[name] = band(times, totals * scale, edges)
    bands["output_rate"] = rate(timeline, timeline["decode_seqs"] * timeline["steps"], coarse, first_tokens_s)
    bands["prompt_rate"] = rate(timeline, timeline["prefill_tokens"], coarse)
    return bands


def of_replica(columns: Columns, index: int) -> dict[str, Float64]:
    """The rows of one replica."""
    mine = columns["replica"] == index
    return {name: values[mine] for name, values in columns.items()}


def slowest(values: Float64, share: float) -> NDArray[np.bool_]:
    """Which finite values are the greatest `share` of them: at least one, if there is any."""
    known = np.isfinite(values)
    if not known.any():
        return known
    return known & (values >= np.percentile(values[known], 100 * (1 - share)))


def splits_end_to_end(stages: Columns, e2el: Float64) -> list[Split]:
    """Where the time of a request goes, over all that completed and over the slowest 1%."""
    return _splits(stages, e2el)


def splits_to_first_token(stages: Columns, ttft: Float64) -> list[Split]:
    """The same up to the first token; what its own stages leave over was spent preempted.

    Less than a microsecond is rounding, since the stages are read as decimal seconds.
    """
    before = {name: stages[name] for name in BEFORE_FIRST_TOKEN if name in stages}
    rest = ttft - sum(before.values(), np.zeros(ttft.size))
    return _splits({**before, "preempted": np.where(rest > 1e-6, rest, 0.0)}, ttft)


def _splits(stages: Columns, time: Float64) -> list[Split]:
    groups = {"all requests": np.isfinite(time), "slowest 1%": slowest(time, 0.01)}
    return [
        Split(
            group,
            int(members.sum()),
            {
                name: float(values[members].mean()) if members.any() else 0.0
                for name, values in stages.items()
            },
        )
        for group, members in groups.items()
    ]
