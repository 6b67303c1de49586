"""Decode attention rows -> DecodeCurve: a base per (head_dim, window), then local regression."""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression

from calibration.head_rows import FIT_ROWS, GROUPS, fitted, points, smooth_per_length, split
from calibration.regression import fit_positive, thin
from calibration.tables import Table
from sim.curves.decode import DecodeCurve, DecodeRegime, decode_base
from sim.curves.heads import KV_BYTES, group_coordinate
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device

KV_HEADS = np.array([1, 2, 4, 8.0])
BANDWIDTH = np.array([0.4, 0.5, 0.6])
"""Of the local regression in log2 of sequences x KV heads, log2 of KV heads, and the group coordinate."""
LONGEST_LAUNCH = 5e-5
"""Seconds, of one launch on a GPU."""
BEYOND_L2 = 4.0
"""Times the L2 cache: keys and values beyond it come from HBM."""


def fit_decode(table: Table, kv_dtype: str, device: Device) -> DecodeCurve:
    """Fit all (head_dim, window) of one KV dtype."""
    hbm = streaming_bytes_per_s(table, KV_BYTES[kv_dtype], device)
    source = f"attention_decode rows of kv_dtype {kv_dtype}: {len(table)} rows, {table.merged} repeats merged"
    return decode_curve(table, kv_dtype, source, (device.hbm_bytes_per_s, hbm))


def decode_curve(
    table: Table,
    kv_dtype: str,
    source: str,
    bandwidths: tuple[float, float],
    *,
    longest_launch_s: float = LONGEST_LAUNCH,
    heads: Float = KV_HEADS,
) -> DecodeCurve:
    """Fit a regime for each (head_dim, window) of the table, as `decode_regime` does."""
    axes = {"heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim"}
    kv_bytes = KV_BYTES[kv_dtype]
    return DecodeCurve(
        source=source,
        fitted=fitted(table, **axes, num_seqs="batch", mean_context="kv_len"),
        kv_bytes=kv_bytes,
        regimes=tuple(
            decode_regime(
                part, kv_bytes, (dim, window), bandwidths, longest_launch_s=longest_launch_s, heads=heads
            )
            for dim, window, part in split(table)
        ),
    )


def streaming_bytes_per_s(table: Table, kv_bytes: float, device: Device) -> float:
    """Bandwidth of rows whose cache exceeds L2 many times, launch apart: nine tenths of them are slower."""
    moved = 2 * kv_bytes * table.number("kv_heads") * table.number("head_dim")
    moved = moved * table.number("batch") * table.number("kv_len")
    far = (table.number("window") == 0) & (moved > BEYOND_L2 * device.l2_bytes)
    if not far.any():
        return 0.85 * device.hbm_bytes_per_s
    return float(np.quantile(moved[far] / (table.time_s[far] - table.time_s.min()), 0.9))


def decode_regime(
    part: Table,
    kv_bytes: float,
    kind: tuple[int, int],
    bandwidths: tuple[float, float],
    *,
    longest_launch_s: float,
    heads: Float,
) -> DecodeRegime:
    """Fit one (head_dim, window); `bandwidths` are the vendor's, and that of keys and values from memory.

    KV heads of the table's nodes are `heads`.

    Kernels of a GPU read at a fifth of the vendor's at least; where launches are longer, reading may be slower.
    """
    fit = _base(part, kv_bytes, kind, bandwidths, longest_launch_s)
    residual = np.log(part.time_s / _predict(part, fit, kv_bytes))
    rows = part.number("batch") * part.number("kv_heads")
    octaves = np.arange(np.ceil(np.log2(rows.max())) + 1.0)
    nodes = (octaves, np.log2(heads), group_coordinate(GROUPS))
    places = points(part, rows, group_coordinate)
    lengths, log_factor = smooth_per_length(part.number("kv_len"), places, residual, nodes, BANDWIDTH)
    log_factor = _monotone(fit, kv_bytes, lengths, octaves, heads, log_factor)
    axes = dict(zip(("mean_context", "rows", "kv_heads", "group"), (np.log2(lengths), *nodes), strict=True))
    return fit.model_copy(update={"table": LogTable.pack(axes, log_factor)})


def _predict(rows: Table, fit: DecodeRegime, kv_bytes: float) -> Float:
    layout = (rows.number("heads"), rows.number("kv_heads"), fit.head_dim, fit.window)
    batch = rows.number("batch")
    return decode_base(fit, kv_bytes, layout, batch, batch * rows.number("kv_len"))


def _base(
    part: Table, kv_bytes: float, kind: tuple[int, int], bandwidths: tuple[float, float], launch_s: float
) -> DecodeRegime:
    vendor, streaming = bandwidths
    slowest = 0.2 * min(1.0, LONGEST_LAUNCH / launch_s)

    def regime(p: Float) -> DecodeRegime:
        return DecodeRegime(
            head_dim=kind[0],
            window=kind[1],
            launch_s=p[0],
            bytes_per_s=p[1],
            hbm_bytes_per_s=streaming,
            query_s_per_value=p[2],
        )

    rows = part.where(thin(len(part), FIT_ROWS))
    found = fit_positive(
        lambda p: _predict(rows, regime(p), kv_bytes),
        rows.time_s,
        (
            np.array([1e-6, slowest * vendor, 0.01 / vendor]),
            np.array([part.time_s.min(), 0.8 * vendor, 4 / vendor]),
            np.array([launch_s, 1.05 * vendor, 1e4 / vendor]),
        ),
    )
    return regime(found)


def _monotone(
    fit: DecodeRegime, kv_bytes: float, lengths: Float, octaves: Float, heads: Float, log_factor: Float
) -> Float:
    """Least change that makes the time at the nodes grow with the context (isotonic regression)."""
    context, rows, kv_heads, group = np.meshgrid(lengths, 2.0**octaves, heads, GROUPS, indexing="ij")
    batch = rows / kv_heads
    layout = (kv_heads * group, kv_heads, fit.head_dim, fit.window)
    log_base = np.log(decode_base(fit, kv_bytes, layout, batch, batch * context))
    log_time = (log_base + log_factor).reshape(len(lengths), -1)
    for column in log_time.T:
        column[:] = isotonic_regression(column).x
    return np.asarray(log_time.reshape(log_factor.shape) - log_base)
