"""GEMM rows -> GemmCurve: a roofline over waves of tiles, then local regression of what remains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from calibration.regression import despiked, fit_positive, thin
from calibration.tables import Table
from sim.curves.gemm import WEIGHT_BYTES, GemmCurve, Tile
from sim.curves.local import smoother
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device

TILES = (
    (256, 128),
    (128, 256),
    (128, 128),
    (64, 128),
    (128, 64),
    (64, 256),
    (64, 64),
    (192, 128),
    (32, 64),
    (16, 64),
)
"""Output tiles of common GEMM kernels; the fit gives each its rate, unused ones end up slow."""
BANDWIDTH = np.array([0.5, 1.0])
"""Of the local regression, in steps of the (n, k) grid: efficiencies of one n are alike along k."""
SPIKE = 0.2
"""A logarithm further than this from its neighbours in (n, k) at the same m is a spike."""
SPIKY = 0.05
"""A table with more spikes than this (B200 fp8, L40S) is first filtered along m,"""
FILTER = 5
"""by the median of so many neighbouring token counts. Elsewhere steps in m are real (Hopper at 17 to 33)."""
SMALL = 512
"""Shapes narrower than this are kept out of the base fit: they are all launch."""
TINY = (64, 512)
"""fp8_block was timed without a CUDA graph: up to so many tokens and so wide, its rows measure the host."""
EAGER_FLOOR = 1.1
"""Rows below this multiple of what 95 % of the tiny ones took are taken to measure the host as well."""


def fit_gemm(table: Table, dtype: str, device: Device, *, stand_in: GemmCurve | None = None) -> GemmCurve:
    """Fit one dtype. `stand_in` prices rows that measure the host rather than the kernel (fp8_block)."""
    if stand_in is not None:
        table = without_host_floor(table, stand_in)
    bare = _base(table, dtype, device)
    grid = _Grid.of(table)
    residual = grid.residual(table, bare)
    known = ~np.isnan(residual).all(axis=1)
    filled = _fill_along_m(residual[known])
    points = grid.points[known]
    clean, spike = despiked(points, filled, BANDWIDTH, SPIKE)
    if spike.mean() > SPIKY:
        clean, _ = despiked(points, median_filter(filled, size=(1, FILTER), mode="nearest"), BANDWIDTH, SPIKE)
    log_factor = smoother(points, grid.points, BANDWIDTH) @ clean
    log_factor = np.clip(log_factor, clean.min(axis=0), clean.max(axis=0))
    axes = {"m": np.log2(grid.m), "n": np.log2(grid.n), "k": np.log2(grid.k)}
    cube = log_factor.T.reshape(len(grid.m), len(grid.n), len(grid.k))
    return bare.model_copy(update={"table": LogTable.pack(axes, cube)})


def without_host_floor(table: Table, stand_in: GemmCurve) -> Table:
    """Rows that took no longer than the host's launch get the stand-in's time where that is less."""
    hidden, seen = hidden_by_host(table, stand_in)
    time_s = np.where(hidden, np.minimum(seen, table.time_s), table.time_s)
    return Table(table.name, table.columns, time_s, table.merged)


def hidden_by_host(table: Table, stand_in: GemmCurve) -> tuple[NDArray[np.bool_], Float]:
    """Say which rows measure the host, and what the stand-in takes for all.

    Those are rows no longer than nearly all tiny ones, and rows whose work takes the stand-in less than half
    of that: what they show above it is the host's noise.
    """
    tokens, width = TINY
    tiny = (table.number("m") <= tokens) & (table.number("n") <= width) & (table.number("k") <= width)
    floor = float(np.quantile(table.time_s[tiny], 0.95))
    seen = stand_in.seconds(table.number("m"), table.number("n"), table.number("k"))
    return (table.time_s < EAGER_FLOOR * floor) | (seen < floor / 2), seen


def _base(table: Table, dtype: str, device: Device) -> GemmCurve:
    big = table.where((table.number("n") >= SMALL) & (table.number("k") >= SMALL))
    rows = big.where(thin(len(big), 3000))
    m, n, k = rows.number("m"), rows.number("n"), rows.number("k")
    peak = (
        device.flops_per_s.get(dtype.removesuffix("_block"), device.flops_per_s["bfloat16"]) / device.sm_count
    )

    def curve(p: Float) -> GemmCurve:
        rates, starts = p[4 : 4 + len(TILES)], p[4 + len(TILES) :]
        return GemmCurve(
            source=f"gemm rows of dtype {dtype}: {len(table)} rows, {table.merged} repeats merged"
            + ("; rows that measured the host's launch priced as fp8" if dtype == "fp8_block" else ""),
            fitted={axis: _range(table.number(axis)) for axis in ("m", "n", "k")},
            launch_s=p[0],
            bytes_per_s=p[1],
            sharpness=p[2],
            quantised=min(p[3], 1.0),
            sms=device.sm_count,
            tiles=tuple(
                Tile(m=a, n=b, flops_per_s=rate, start_s=start)
                for (a, b), rate, start in zip(TILES, rates, starts, strict=True)
            ),
            weight_bytes=WEIGHT_BYTES[dtype],
        )

    tiles = len(TILES)
    hbm, floor = device.hbm_bytes_per_s, 0.5 * float(table.time_s.min())
    found = fit_positive(
        lambda p: curve(p).base(m, n, k),
        rows.time_s,
        (
            np.r_[floor, 0.3 * hbm, 1.0, 0.02, np.full(tiles, 0.02 * peak), np.full(tiles, 1e-8)],
            np.r_[3e-6, 0.85 * hbm, 3.0, 0.2, np.full(tiles, 0.75 * peak), np.full(tiles, 1e-6)],
            np.r_[5e-5, 1.05 * hbm, 8.0, 0.4, np.full(tiles, 1.1 * peak), np.full(tiles, 2e-5)],
        ),
    )
    return curve(found)


@dataclass(frozen=True)
class _Grid:
    """The (n, k) pairs as points in grid steps, the m values as columns."""

    m: Float
    n: Float
    k: Float
    points: Float

    @classmethod
    def of(cls, table: Table) -> _Grid:
        m, n, k = (np.unique(table.number(axis)) for axis in ("m", "n", "k"))
        rows, columns = np.meshgrid(np.arange(len(n)), np.arange(len(k)), indexing="ij")
        return cls(m, n, k, np.stack([rows.ravel(), columns.ravel()], axis=1).astype(np.float64))

    def residual(self, table: Table, base: GemmCurve) -> Float:
        out = np.full((len(self.points), len(self.m)), np.nan)
        m, n, k = (table.number(axis) for axis in ("m", "n", "k"))
        pair = np.searchsorted(self.n, n) * len(self.k) + np.searchsorted(self.k, k)
        out[pair, np.searchsorted(self.m, m)] = np.log(table.time_s / base.base(m, n, k))
        return out


def _fill_along_m(rows: Float) -> Float:
    filled = rows.copy()
    for row in filled:
        hole = np.isnan(row)
        if hole.any():
            row[hole] = np.interp(np.flatnonzero(hole), np.flatnonzero(~hole), row[~hole])
    return filled


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.min()), float(values.max())
