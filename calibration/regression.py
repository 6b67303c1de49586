"""Fitting tools: positive parameters in log space, local linear regression over shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.curves.local import smoother
from sim.curves.term import Float

ALIKE = 0.1
"""Weight of a factor e between neighbouring parameters, against a row missed by as much."""

SOFT = 0.05
"""Errors of a logarithm beyond this count by their amount, smaller ones by their square."""
ROUNDS, STEP, DAMPING, STUCK, FAR = 80, 1e-6, 1e-2, 1e8, 1.0
"""Of the descent: most rounds, difference for slopes, first and last damping, longest move of a logarithm."""


def fit_positive(
    predict: Callable[[Float], Float],
    measured: Float,
    bounds: tuple[Float, Float, Float],
    alike: slice = slice(0),
) -> Float:
    """Find positive parameters that minimise the soft absolute error of log(predicted / measured).

    `bounds` are the lowest, first and highest values; neighbours among the parameters `alike` are drawn to
    each other, so that those which the rows do not pin down follow the others.
    """
    low, start, high = (np.log(bound) for bound in bounds)
    pull = ALIKE * np.sqrt(len(measured))

    def miss(log_parameters: Float) -> Float:
        error = np.log(predict(np.exp(log_parameters)) / measured)
        return np.concatenate([error, pull * np.diff(log_parameters[alike])])

    return np.asarray(np.exp(_descend(miss, np.clip(start, low, high), low, high)))


def _descend(miss: Callable[[Float], Float], x: Float, low: Float, high: Float) -> Float:
    """Levenberg-Marquardt on the soft absolute error, projected on the bounds.

    In normal equations, as parameters are few: SciPy's least_squares decomposes the whole Jacobian, and takes
    ten times as long on a busy machine.
    """
    error = miss(x)
    cost, damping = _soft_cost(error), DAMPING
    for _ in range(ROUNDS):
        slopes = np.stack([(miss(x + step) - error) / STEP for step in STEP * np.eye(len(x))])
        weighted = slopes / np.sqrt(1.0 + (error / SOFT) ** 2)
        gradient = np.einsum("ir,r->i", weighted, error)
        curvature = np.einsum("ir,jr->ij", weighted, slopes)
        free = ~((x <= low) & (gradient > 0) | (x >= high) & (gradient < 0))
        before = cost
        while damping < STUCK:
            square = curvature[np.ix_(free, free)]
            move = np.zeros(len(x))
            scale = np.diag(square) + 1e-9 * square.max(initial=1e-12)
            move[free] = np.linalg.solve(square + damping * np.diag(scale), -gradient[free])
            tried = np.clip(x + np.clip(move, -FAR, FAR), low, high)
            missed = miss(tried)
            if _soft_cost(missed) < cost:
                x, error, cost, damping = tried, missed, _soft_cost(missed), damping / 5
                break
            damping *= 4
        if before - cost < 1e-6 * before:
            break
    return x


def _soft_cost(error: Float) -> float:
    return float((SOFT**2 * (np.sqrt(1.0 + (error / SOFT) ** 2) - 1.0)).sum())


def thin(rows: int, most: int) -> NDArray[np.bool_]:
    """Mask of evenly spread rows, at most `most` of them."""
    mask = np.zeros(rows, dtype=bool)
    mask[np.linspace(0, rows - 1, min(rows, most)).astype(np.intp)] = True
    return mask


def smooth(points: Float, values: Float, queries: Float, bandwidth: Float) -> Float:
    """Estimate at the queries, within the range of the values."""
    estimate = smoother(points, queries, bandwidth) @ values
    return np.asarray(np.clip(estimate, values.min(axis=0), values.max(axis=0)))


def despiked(points: Float, values: Float, bandwidth: Float, limit: float) -> tuple[Float, NDArray[np.bool_]]:
    """Replace values that stand out from their neighbours by more than `limit`; say which.

    Each value is compared with what the others say about its place (leave-one-out residual of a linear
    smoother: residual / (1 - leverage)).
    """
    matrix = smoother(points, points, bandwidth)
    leverage = np.minimum(np.diag(matrix), 0.99)
    missed = (values - matrix @ values) / (1.0 - leverage).reshape(-1, *[1] * (values.ndim - 1))
    spike = np.abs(missed) > limit
    return np.where(spike, values - missed, values), spike
