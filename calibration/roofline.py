"""The yardstick: t0 + max(FLOP / P, bytes / W) with three fitted parameters for a whole table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.regression import fit_positive, thin
from calibration.tables import Table
from sim.curves.gemm import activation_bytes
from sim.curves.prefill import causal_area
from sim.curves.term import Float


@dataclass(frozen=True, eq=False)
class Work:
    """What a row computes and moves."""

    flops: Float
    moved: Float

    def where(self, mask: NDArray[np.bool_]) -> Work:
        return Work(self.flops[mask], self.moved[mask])


def fit_roofline(work: Work, time_s: Float) -> Callable[[Work], Float]:
    """Fit in log space, all rows alike."""
    few = thin(len(time_s), 6000)
    part, measured = work.where(few), time_s[few]
    fastest = (max(float((part.flops / measured).max()), 1.0), float((part.moved / measured).max()))

    def predict(p: Float, asked: Work) -> Float:
        return np.asarray(p[0] + np.maximum(asked.flops / p[1], asked.moved / p[2]))

    found = fit_positive(
        lambda p: predict(p, part),
        measured,
        (
            np.array([1e-8, 1e-3 * fastest[0], 1e-3 * fastest[1]]),
            np.array([measured.min(), 0.7 * fastest[0], 0.7 * fastest[1]]),
            np.array([1e-2, 1e2 * fastest[0], 1e2 * fastest[1]]),
        ),
    )
    return lambda asked: predict(found, asked)


def gemm_work(table: Table, weight_bytes: float) -> Work:
    m, n, k = (table.number(axis) for axis in ("m", "n", "k"))
    return Work(2 * m * n * k, n * k * weight_bytes + activation_bytes(weight_bytes) * m * (n + k))


def prefill_work(table: Table, kv_bytes: float) -> Work:
    batch, isl, past = (table.number(axis) for axis in ("batch", "isl", "past_kv"))
    heads, kv_heads, dim = (table.number(axis) for axis in ("heads", "kv_heads", "head_dim"))
    area = np.empty(len(table))
    for window in np.unique(table["window"]):
        here = table["window"] == window
        area[here] = causal_area(isl[here], past[here], int(window))
    moved = batch * dim * (4 * isl * heads + 2 * kv_bytes * (past + isl) * kv_heads)
    return Work(4 * batch * heads * dim * area, moved)


def decode_work(table: Table, kv_bytes: float) -> Work:
    batch, heads, dim = table.number("batch"), table.number("heads"), table.number("head_dim")
    window = table.number("window")
    read = batch * np.where(window > 0, np.minimum(table.number("kv_len"), window), table.number("kv_len"))
    moved = 2 * kv_bytes * table.number("kv_heads") * dim * read + 4 * batch * heads * dim
    return Work(4 * heads * dim * read, moved)


def moe_work(table: Table, weight_bytes: float) -> Work:
    here = table.number("experts") / table.number("moe_ep")
    rows = table.number("tokens") * table.number("topk") / table.number("moe_ep")
    hidden, inner = table.number("hidden"), table.number("inter") / table.number("moe_tp")
    touched = here * (1 - (1 - 1 / np.maximum(here, 1.000001)) ** rows)
    return Work(6 * rows * hidden * inner, 3 * touched * hidden * inner * weight_bytes + 4 * rows * hidden)
