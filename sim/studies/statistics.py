"""Statistics of simulation output: where the warm-up ends, and how far a difference may be chance.

Every random number comes from the generator that is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

CONFIDENCE = 0.95
DRAWS = 1000
BATCH = 5  # of MSER-5


class Sample(Protocol):
    """What is known of one run: a number of requests, and metrics of them."""

    def __len__(self) -> int:
        """How many requests."""

    def estimate(self, weights: Int64) -> Float64:
        """Each metric, with request i counted `weights[i]` times; NaN where it is undefined."""


def mser5(series: Float64) -> int:
    """How many of the first values to leave out as warm-up: MSER-5, at most half of them.

    The cut minimises the marginal standard error of the mean of what is left, over batches of five: a longer cut
    drops more bias, and pays for it in fewer values. (White, "An effective truncation heuristic for bias reduction in
    simulation output", Simulation 69, 1997; batches of five: White, Cobb and Spratt, Winter Simulation Conference
    2000.) NaN stands for a request without a value and is skipped.
    """
    batches = series.size // BATCH
    if batches < 2:
        return 0
    values = series[: batches * BATCH].reshape(batches, BATCH)
    known = ~np.isnan(values)
    counts = known.sum(axis=1)
    at = np.flatnonzero(counts)  # batches with a value
    if at.size < 2:
        return 0
    means = np.where(known, values, 0.0).sum(axis=1)[at] / counts[at]
    means -= means.mean()  # the sums of squares below then lose no digits
    left = np.arange(at.size, 0, -1)
    total, squares = np.cumsum(means[::-1])[::-1], np.cumsum(np.square(means)[::-1])[::-1]
    error = (squares - np.square(total) / left) / np.square(left)
    within = int(np.searchsorted(at, batches // 2, side="right"))
    return int(at[int(np.argmin(error[:within]))]) * BATCH if within else 0


def block_length(size: int) -> int:
    """Length of the blocks of a bootstrap over `size` requests in order of arrival, about its square root.

    Neighbours share a queue, so that their latencies are alike; drawn one by one they would look like more evidence
    than they are. A block must span that likeness, and there must be many blocks; the square root grows for both.
    """
    return max(1, math.isqrt(size))


def block_weights(rng: np.random.Generator, size: int) -> Int64:
    """How often each of `size` requests in order is taken, in one resample of blocks.

    The blocks start anywhere and wrap around, so that every request is as likely as any other (the circular form of
    the moving-block bootstrap: Künsch, Ann. Statist. 17, 1989; Politis and Romano, 1992). The weights sum to `size`.
    """
    block = block_length(size)
    full, rest = divmod(size, block)
    starts = rng.integers(0, size, full + (rest > 0))
    ends = starts + block
    if rest:
        ends[-1] = starts[-1] + rest
    steps = np.bincount(starts, minlength=size + block + 1) - np.bincount(ends, minlength=size + block + 1)
    counts = np.cumsum(steps)
    weights: Int64 = counts[:size].copy()
    weights[:block] += counts[size : size + block]
    return weights


def resampled_deviation(values: Float64) -> float:
    """Standard deviation of the sum of `values`, over the resamples of `block_weights`."""
    size = values.size
    if not size:
        return 0.0
    full, rest = divmod(size, block_length(size))
    upto = np.concatenate([[0.0], np.cumsum(np.tile(values - values.mean(), 2))])

    def variance(length: int) -> float:
        return float(np.square(upto[length : length + size] - upto[:size]).mean())

    return math.sqrt(full * variance(block_length(size)) + (variance(rest) if rest else 0.0))


def means(samples: Sequence[Sample]) -> Float64:
    """Each metric, averaged over replications."""
    return _mean(np.array([sample.estimate(np.ones(len(sample), dtype=np.int64)) for sample in samples]))


def paired_draws(
    arms: Sequence[Sequence[Sample]], rng: np.random.Generator, draws: int = DRAWS
) -> NDArray[np.float64]:
    """Resample `arms[arm][replication]` and return each metric's average, as draws x arms x metrics.

    Two levels: replications are drawn with replacement (where there are several), and within each the requests, by
    blocks. All arms see the same draw, since replication r holds the same requests in each of them (common random
    numbers): what they share cancels in a difference. With few replications the outer level alone is too narrow (by
    (R - 1)/R in variance, and for want of Student's t), and with the inner one added it is somewhat wide (Davison and
    Hinkley, "Bootstrap methods and their application", 1997, 3.8). At five replications it is about as wide as
    Student's interval; it errs towards "no difference shown".
    """
    count = len(arms[0])
    result: list[list[Float64]] = []
    for _ in range(draws):
        chosen = rng.integers(0, count, count) if count > 1 else np.zeros(1, dtype=np.int64)
        weights = [block_weights(rng, len(arms[0][r])) for r in chosen]
        result.append(
            [
                _mean(np.array([arm[r].estimate(w) for r, w in zip(chosen, weights, strict=True)]))
                for arm in arms
            ]
        )
    return np.array(result)


def count_blocks(samples: Sequence[Sample]) -> int:
    """How many blocks the replications of an arm hold: the independent pieces of evidence."""
    return sum(-(-len(sample) // block_length(len(sample))) for sample in samples)


def interval(values: Float64, blocks: int, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Percentile interval of a bootstrap over `blocks`; None where fewer than half of the draws have a value.

    Expanded for few blocks: a plain percentile interval is too narrow by sqrt(1 - 1/n) and by the normal quantile in
    place of Student's (Hesterberg, "What teachers should know about the bootstrap", Am. Statistician 69, 2015).
    """
    known = values[~np.isnan(values)]
    if known.size < max(2, values.size // 2) or blocks < 2:
        return None
    from scipy.special import ndtr, stdtrit  # noqa: PLC0415  slow to import

    tail = 100 * float(ndtr(math.sqrt(blocks / (blocks - 1)) * stdtrit(blocks - 1, (1 - confidence) / 2)))
    low, high = np.percentile(known, [tail, 100 - tail])
    return float(low), float(high)


def t_half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Half the width of Student's interval for the mean of independent values; infinite for one."""
    if len(values) < 2:
        return math.inf
    from scipy.special import stdtrit  # noqa: PLC0415  slow to import

    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _mean(estimates: Float64) -> Float64:
    """Column means over the rows that have a value."""
    known = ~np.isnan(estimates)
    counts = known.sum(axis=0)
    total = np.where(known, estimates, 0.0).sum(axis=0)
    return np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0)
