"""Local linear regression: an estimate at a place from measurements around it."""

from __future__ import annotations

import numpy as np

from sim.curves.term import Float

CHUNK = 256
RIDGE = 1e-2


def smoother(points: Float, queries: Float, bandwidth: Float) -> Float:
    """Matrix S so that S @ values estimates at the queries: local linear, Gaussian weights (Cleveland, 1979).

    Distances count in units of `bandwidth` per axis. Far from all points the slope is damped away, so that
    the nearest values hold.
    """
    points, queries = points / bandwidth, queries / bandwidth
    out = np.empty((len(queries), len(points)))
    for start in range(0, len(queries), CHUNK):
        part = queries[start : start + CHUNK]
        offset = points[None] - part[:, None]
        square = (offset**2).sum(axis=2)
        nearest = square.min(axis=1)
        weight = np.exp(-0.5 * (square - nearest[:, None]))
        design = np.concatenate([np.ones((*square.shape, 1)), offset], axis=2)
        weighted = design * weight[:, :, None]
        normal = np.einsum(
            "qni,qnj->qij", weighted, design
        )  # small products: threads of BLAS would only wait
        damping = (RIDGE + nearest) * weight.sum(axis=1)
        for axis in range(1, design.shape[2]):
            normal[:, axis, axis] += damping
        picked = np.zeros((len(part), design.shape[2], 1))
        picked[:, 0] = 1.0
        solved = np.linalg.solve(normal, picked)
        out[start : start + CHUNK] = np.einsum("qni,qi->qn", weighted, solved[:, :, 0])
    return out
