"""MoE rows -> MoeCurve: a roofline over touched experts, then the measured shapes themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibration.regression import fit_positive, thin
from calibration.tables import Table
from sim.curves.moe import MOE_WEIGHT_BYTES, MoeCurve, MoeShape
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device

SHAPE_COLUMNS = ("hidden", "inter", "topk", "experts", "moe_tp", "moe_ep")
FIT_ROWS = 3000


def moe_shapes(table: Table) -> tuple[list[MoeShape], NDArray[np.intp]]:
    """Distinct measured shapes, and which of them each row is."""
    columns = np.stack([table[column].astype(np.int64) for column in SHAPE_COLUMNS], axis=1)
    distinct, code = np.unique(columns, axis=0, return_inverse=True)
    names = ("hidden", "inter", "top_k", "experts", "tp", "ep")
    shapes = [MoeShape(**dict(zip(names, map(int, row), strict=True))) for row in distinct]
    return shapes, code.ravel()


def predict_moe(curve: MoeCurve, table: Table, *, base: bool = False) -> Float:
    """Seconds of every row."""
    shapes, code = moe_shapes(table)
    tokens, out = table.number("tokens"), np.empty(len(table))
    for index, shape in enumerate(shapes):
        here = code == index
        if base:
            out[here] = curve.base(tokens[here], shape)
            continue
        for distribution in np.unique(table["distribution"][here]):
            part = here & (table["distribution"] == distribution)
            out[part] = curve.seconds(tokens[part], shape, str(distribution))
    return out


def fit_moe(table: Table, dtype: str, device: Device) -> MoeCurve:
    """Fit one dtype."""
    bare = _base(table, dtype, device)
    shapes, code = moe_shapes(table)
    distributions = tuple(map(str, np.unique(table["distribution"])))
    tokens = np.unique(table.number("tokens"))
    residual = np.log(table.time_s / predict_moe(bare, table, base=True))
    cube = np.full((len(shapes), len(distributions), len(tokens)), np.nan)
    kind = np.searchsorted(np.array(distributions), table["distribution"].astype(str))
    cube[code, kind, np.searchsorted(tokens, table.number("tokens"))] = residual
    _fill(cube)
    axes = {
        "shape": np.arange(len(shapes), dtype=np.float64),
        "distribution": np.arange(len(distributions), dtype=np.float64),
        "tokens": np.log2(tokens),
    }
    update = {"shapes": tuple(shapes), "distributions": distributions, "table": LogTable.pack(axes, cube)}
    return bare.model_copy(update=update)


def _fill(cube: Float) -> None:
    """Unmeasured token counts take the nearest measured ones, unmeasured distributions the mean of the others."""
    for rows in cube:
        for row in rows:
            hole = np.isnan(row)
            if hole.any() and not hole.all():
                row[hole] = np.interp(np.flatnonzero(hole), np.flatnonzero(~hole), row[~hole])
        empty = np.isnan(rows).all(axis=1)
        rows[empty] = rows[~empty].mean(axis=0)


def _base(table: Table, dtype: str, device: Device) -> MoeCurve:
    rows = table.where(thin(len(table), FIT_ROWS))
    peak = device.flops_per_s.get(dtype.removesuffix("_block"), device.flops_per_s["bfloat16"])
    hbm = device.hbm_bytes_per_s

    def curve(p: Float) -> MoeCurve:
        return MoeCurve(
            source=f"moe rows of dtype {dtype}: {len(table)} rows, {table.merged} repeats merged",
            fitted={
                axis: (float(table.number(column).min()), float(table.number(column).max()))
                for axis, column in zip(
                    ("tokens", "hidden", "inter", "top_k", "experts", "tp", "ep"),
                    ("tokens", *SHAPE_COLUMNS),
                    strict=True,
                )
            },
            launch_s=p[0],
            flops_per_s=p[1],
            bytes_per_s=p[2],
            permute_bytes_per_s=p[3],
            pad_rows=p[4],
            weight_bytes=MOE_WEIGHT_BYTES[dtype],
        )

    found = fit_positive(
        lambda p: predict_moe(curve(p), rows, base=True),
        rows.time_s,
        (
            np.array([2e-6, 0.03 * peak, 0.1 * hbm, 0.02 * hbm, 0.1]),
            np.array([2e-5, 0.5 * peak, 0.7 * hbm, 0.5 * hbm, 8.0]),
            np.array([1e-4, 1.1 * peak, 1.1 * hbm, 10.0 * hbm, 256.0]),
        ),
    )
    return curve(found)
