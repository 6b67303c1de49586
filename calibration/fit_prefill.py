"""Prefill attention rows -> PrefillCurve: a base per (head_dim, window), then local regression."""

from __future__ import annotations

import numpy as np

from calibration.head_rows import FIT_ROWS, GROUPS, fitted, points, smooth_per_length, split
from calibration.regression import fit_positive, smooth, thin
from calibration.tables import Table
from sim.curves.heads import KV_BYTES
from sim.curves.prefill import WRITE_HEADS, PrefillCurve, PrefillRegime, causal_area, prefill_base
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device

KV_HEADS = np.array([1, 4, 16, 64.0])
ROWS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048.0])
"""Sequences x query heads of a launch."""
BANDWIDTH = np.array([0.2, 0.8, 0.4])
"""Of the local regression in log2 of rows, KV heads and group size."""
LENGTH_BANDWIDTH, CONTEXT_SPREAD = 0.5, np.array([2.5, 1.0, 1.0])
"""The same along the length, and for rows, where rows have context: they lie scattered."""
LONGEST_LAUNCH = 5e-5
"""Seconds, of one launch on a GPU."""


def fit_prefill(table: Table, kv_dtype: str, device: Device) -> PrefillCurve:
    """Fit all (head_dim, window) of one KV dtype."""
    axes = {"heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim"}
    ranges = fitted(table, **axes, new_tokens="isl", context_tokens="past_kv", num_seqs="batch")
    kv_bytes = KV_BYTES[kv_dtype]
    return PrefillCurve(
        source=f"attention_prefill rows of kv_dtype {kv_dtype}: {len(table)} rows, {table.merged} repeats merged; "
        "context, which no row has, by equal work and keys per query",
        fitted=ranges,
        kv_bytes=kv_bytes,
        regimes=tuple(
            prefill_regime(part, kv_bytes, (dim, window), device) for dim, window, part in split(table)
        ),
    )


def prefill_regime(
    part: Table,
    kv_bytes: float,
    kind: tuple[int, int],
    device: Device,
    *,
    longest_launch_s: float = LONGEST_LAUNCH,
) -> PrefillRegime:
    """Fit one (head_dim, window). Rows with context lie where the curve looks them up: at equal keys per query."""
    fit = _base(part, kv_bytes, kind, device, longest_launch_s)
    residual = np.log(part.time_s / _predict(part, fit, kv_bytes))
    nodes = (np.log2(ROWS), np.log2(KV_HEADS), np.log2(GROUPS))
    if part.number("past_kv").any():
        lengths, log_factor = _smooth_with_context(part, residual, nodes, kind[1])
    else:
        places = points(part, part.number("batch") * part.number("heads"), np.log2)
        lengths, log_factor = smooth_per_length(part.number("isl"), places, residual, nodes, BANDWIDTH)
    axes = dict(zip(("new_tokens", "rows", "kv_heads", "group"), (np.log2(lengths), *nodes), strict=True))
    return fit.model_copy(update={"table": LogTable.pack(axes, log_factor)})


def _smooth_with_context(
    part: Table, residual: Float, nodes: tuple[Float, Float, Float], window: int
) -> tuple[Float, Float]:
    """Residuals over lengths that differ from row to row, smoothed along the length as well."""
    new, past = part.number("isl"), part.number("past_kv")
    alike = np.maximum(2.0 * causal_area(new, past, window) / new - 1.0, 1.0)
    rows = np.maximum(part.number("batch") * part.number("heads") * new / alike, 1.0)  # as the table is asked
    places = np.concatenate([np.log2(alike)[:, None], points(part, rows, np.log2)], axis=1)
    lengths = np.unique(np.concatenate([np.unique(new), [alike.max()]]))
    grid = np.stack([axis.ravel() for axis in np.meshgrid(np.log2(lengths), *nodes, indexing="ij")], axis=1)
    log_factor = smooth(
        places, residual, grid, np.concatenate([[LENGTH_BANDWIDTH], BANDWIDTH * CONTEXT_SPREAD])
    )
    return lengths, log_factor.reshape(len(lengths), *(len(axis) for axis in nodes))


def _predict(rows: Table, fit: PrefillRegime, kv_bytes: float) -> Float:
    layout = (rows.number("heads"), rows.number("kv_heads"), fit.head_dim, fit.window)
    return prefill_base(
        fit, kv_bytes, layout, rows.number("isl"), rows.number("past_kv"), rows.number("batch")
    )


def _base(
    part: Table, kv_bytes: float, kind: tuple[int, int], device: Device, launch_s: float
) -> PrefillRegime:
    peaks, hbm = device.flops_per_s, device.hbm_bytes_per_s
    peak = peaks.get("bfloat16", next(iter(peaks.values())))
    block, writes = peak / device.sm_count, len(WRITE_HEADS)

    def regime(p: Float) -> PrefillRegime:
        return PrefillRegime(
            head_dim=kind[0],
            window=kind[1],
            launch_s=p[0],
            flops_per_s=p[1],
            block_flops_per_s=p[2],
            kv_bytes_per_s=0.8 * hbm,
            io_bytes_per_s=p[3],
            sharpness=p[4],
            write_s_per_value=tuple(p[5:]),
        )

    rows = part.where(thin(len(part), FIT_ROWS))
    found = fit_positive(
        lambda p: _predict(rows, regime(p), kv_bytes),
        rows.time_s,
        (
            np.r_[
                1e-6,
                max(1e9, 0.02 * peak),
                max(1e9, 0.02 * block),
                0.2 * hbm,
                1.0,
                np.full(writes, 0.3 / hbm),
            ],
            np.r_[part.time_s.min(), 0.5 * peak, 0.7 * block, hbm, 2.0, np.full(writes, 4 / hbm)],
            np.r_[launch_s, 1.2 * peak, max(2e9, 2.0 * block), 10 * hbm, 8.0, np.full(writes, 200 / hbm)],
        ),
        alike=slice(5, 5 + writes),
    )
    return regime(found)
