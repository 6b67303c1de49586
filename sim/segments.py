"""Piecewise-linear functions of a token count: one by one and in bulk, by the same float operations."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Segments:
    """y = a[i] + b[i] x for breaks[i - 1] <= x < breaks[i]; the first and last segment extend to infinity."""

    breaks: list[float]
    a: list[float]
    b: list[float]

    def at(self, x: int) -> float:
        i = bisect_right(self.breaks, x)
        return self.a[i] + self.b[i] * x

    def many(self, x: Float, first: int, last: int) -> Float:
        """Evaluate `at` on the ascending whole numbers x, from `first` to `last`, bit for bit."""
        i = bisect_right(self.breaks, first)
        if i == bisect_right(self.breaks, last):  # the common case: all in one segment
            return x * self.b[i] + self.a[i]
        index = np.searchsorted(self.breaks, x, side="right")
        return x * np.asarray(self.b)[index] + np.asarray(self.a)[index]

    def shifted(self, offset: float) -> Segments:
        return Segments(self.breaks, [a + offset for a in self.a], self.b)


def through(x: Float, y: Float, tolerance: float = 2e-4) -> Segments:
    """Few connected segments between knots, within `tolerance` (relative) of every knot that they skip."""
    xs, ys = x.tolist(), y.tolist()
    ends = [0]
    while ends[-1] < len(xs) - 1:
        ends.append(_furthest(xs, ys, ends[-1], tolerance))
    slopes = [(ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairwise(ends)] or [0.0]
    starts = ends[: len(slopes)]
    return Segments(
        breaks=[xs[i] for i in starts[1:]],
        a=[ys[i] - slope * xs[i] for i, slope in zip(starts, slopes, strict=True)],
        b=slopes,
    )


def _furthest(xs: list[float], ys: list[float], start: int, tolerance: float) -> int:
    """Find the last knot that a chord from `start` reaches while it passes near every knot between."""
    low, high = float("-inf"), float("inf")
    best = start + 1
    for j in range(start + 1, len(xs)):
        run, rise = xs[j] - xs[start], ys[j] - ys[start]
        if low <= rise / run <= high:
            best = j
        slack = tolerance * abs(ys[j])
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
