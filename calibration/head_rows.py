"""Attention rows by head layout: what the fits of prefill and decode share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from calibration.regression import smooth
from calibration.tables import Table
from sim.curves.term import Float

GROUPS = np.array([1, 2, 4, 8, 16, 20, 32, 64.0])
"""Query heads per KV head at the nodes of the correction tables."""
FIT_ROWS = 3000


def split(table: Table) -> Iterator[tuple[int, int, Table]]:
    """Rows of each (head_dim, window)."""
    for head_dim in np.unique(table["head_dim"]):
        for window in np.unique(table["window"]):
            part = table.only(head_dim=head_dim, window=window)
            if len(part):
                yield int(head_dim), int(window), part


def fitted(table: Table, **names: str) -> dict[str, tuple[float, float]]:
    """Range of the rows along each axis."""
    return {axis: (float(table.number(c).min()), float(table.number(c).max())) for axis, c in names.items()}


def points(table: Table, rows: Float, group: Callable[[Float], Float]) -> Float:
    """Place of every row among the others of its length."""
    kv_heads = table.number("kv_heads")
    return np.stack([np.log2(rows), np.log2(kv_heads), group(table.number("heads") / kv_heads)], axis=1)


def smooth_per_length(
    length: Float, places: Float, residual: Float, nodes: tuple[Float, Float, Float], bandwidth: Float
) -> tuple[Float, Float]:
    """Residuals of each measured length, smoothed onto the grid of nodes."""
    lengths = np.unique(length)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*nodes, indexing="ij")], axis=1)
    shape = tuple(len(axis) for axis in nodes)
    tables = [smooth(places[length == at], residual[length == at], grid, bandwidth) for at in lengths]
    return lengths, np.stack(tables).reshape(len(lengths), *shape)
