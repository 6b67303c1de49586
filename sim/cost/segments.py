"""Piecewise-linear functions of a token count: one by one and in bulk, by the same float operations."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


class Segments:
    """y = a[i] + b[i] x for breaks[i - 1] <= x < breaks[i]; the first and last segment extend to infinity."""

    __slots__ = ("_a", "_arrays", "_b", "_breaks")

    def __init__(self, breaks: list[float], a: list[float], b: list[float]) -> None:
        self._breaks, self._a, self._b = breaks, a, b
        self._arrays = np.array(breaks), np.array(a), np.array(b)

    def __len__(self) -> int:
        return len(self._a)

    def at(self, x: float) -> float:
        i = bisect_right(self._breaks, x)
        return self._a[i] + self._b[i] * x

    def many(self, x: Float, first: float, last: float) -> Float:
        """Evaluate `at` on the ascending numbers x, from `first` to `last`, bit for bit."""
        i = bisect_right(self._breaks, first)
        if i == bisect_right(self._breaks, last):  # the common case: all in one segment
            return x * self._b[i] + self._a[i]
        breaks, a, b = self._arrays
        index = breaks.searchsorted(x, side="right")
        return x * b[index] + a[index]

    def shifted(self, offset: float) -> Segments:
        return Segments(self._breaks, [a + offset for a in self._a], self._b)


def through(x: Float, y: Float, slack: Float) -> Segments:
    """Few connected segments between knots, no further than `slack` from every knot that they skip."""
    xs, ys, slacks = x.tolist(), y.tolist(), slack.tolist()
    ends = [0]
    while ends[-1] < len(xs) - 1:
        ends.append(_furthest(xs, ys, slacks, ends[-1]))
    slopes = [(ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairwise(ends)] or [0.0]
    starts = ends[: len(slopes)]
    return Segments(
        breaks=[xs[i] for i in starts[1:]],
        a=[ys[i] - slope * xs[i] for i, slope in zip(starts, slopes, strict=True)],
        b=slopes,
    )


def _furthest(xs: list[float], ys: list[float], slacks: list[float], start: int) -> int:
    """Find the last knot that a chord from `start` reaches while it passes near every knot between."""
    low, high = float("-inf"), float("inf")
    best = start + 1
    for j in range(start + 1, len(xs)):
        run, rise, slack = xs[j] - xs[start], ys[j] - ys[start], slacks[j]
        if low <= rise / run <= high:
            best = j
        low, high = max(low, (rise - slack) / run), min(high, (rise + slack) / run)
        if low > high:
            break
    return best


def ladder(low: int, high: int, per_octave: int = 4) -> Float:
    """Whole numbers from `low` to `high`, geometrically spaced; every one of them where they are small."""
    if high <= low:
        return np.array([float(low)])
    count = int(np.ceil(np.log2(high / low) * per_octave)) + 1
    return np.unique(np.rint(np.geomspace(low, high, count + 1)))
