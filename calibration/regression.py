"""Fitting tools: positive parameters in log space, local linear regression over shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sim.curves.local import smoother
from sim.curves.term import Float

ALIKE = 0.1
"""Weight of a factor e between neighbouring parameters, against a row missed by as much."""


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
    low, start, high = bounds
    pull = ALIKE * np.sqrt(len(measured))

    def miss(log_parameters: Float) -> Float:
        error = np.log(predict(np.exp(log_parameters)) / measured)
        return np.concatenate([error, pull * np.diff(log_parameters[alike])])

    start = np.clip(start, low * 1.001, high / 1.001)
    found = least_squares(
        miss, np.log(start), bounds=(np.log(low), np.log(high)), loss="soft_l1", f_scale=0.05, max_nfev=60
    )
    return np.asarray(np.exp(found.x))


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
