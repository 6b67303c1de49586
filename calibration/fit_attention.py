"""Attention rows -> PrefillCurve and DecodeCurve: a base per (head_dim, window), then local regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.optimize import isotonic_regression

from calibration.regression import fit_positive, smooth, thin
from calibration.tables import Table
from sim.curves.decode import DecodeCurve, DecodeRegime
from sim.curves.heads import KV_BYTES, group_coordinate
from sim.curves.prefill import WRITE_HEADS, PrefillCurve, PrefillRegime
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device

GROUPS = np.array([1, 2, 4, 8, 16, 20, 32, 64.0])
KV_HEADS = np.array([1, 2, 4, 8.0])
PREFILL_KV_HEADS = np.array([1, 4, 16, 64.0])
ROWS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048.0])
"""Sequences x query heads of a prefill launch."""
PREFILL_BANDWIDTH = np.array([0.2, 0.8, 0.4])
DECODE_BANDWIDTH = np.array([0.4, 0.5, 0.6])
"""Of the local regression in log2(rows), log2(KV heads) and the group coordinate."""
BEYOND_L2 = 4.0
FIT_ROWS = 3000


def _split(table: Table) -> Iterator[tuple[int, int, Table]]:
    for head_dim in np.unique(table["head_dim"]):
        for window in np.unique(table["window"]):
            part = table.only(head_dim=head_dim, window=window)
            if len(part):
                yield int(head_dim), int(window), part


def _fitted(table: Table, **names: str) -> dict[str, tuple[float, float]]:
    return {axis: (float(table.number(c).min()), float(table.number(c).max())) for axis, c in names.items()}


def _points(table: Table, rows: Float, group: Callable[[Float], Float]) -> Float:
    kv_heads = table.number("kv_heads")
    return np.stack([np.log2(rows), np.log2(kv_heads), group(table.number("heads") / kv_heads)], axis=1)


def _smooth_per_length(
    length: Float, points: Float, residual: Float, nodes: tuple[Float, Float, Float], bandwidth: Float
) -> tuple[Float, Float]:
    """Residuals per measured length, smoothed onto the grid of nodes."""
    lengths = np.unique(length)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*nodes, indexing="ij")], axis=1)
    shape = tuple(len(axis) for axis in nodes)
    tables = [smooth(points[length == at], residual[length == at], grid, bandwidth) for at in lengths]
    return lengths, np.stack(tables).reshape(len(lengths), *shape)


def fit_prefill(table: Table, kv_dtype: str, device: Device) -> PrefillCurve:
    """Fit all (head_dim, window) of one KV dtype."""
    curve = PrefillCurve(
        source=f"attention_prefill rows of kv_dtype {kv_dtype}: {len(table)} rows, {table.merged} repeats merged; "
        "context by equal work and keys per query",
        fitted=_fitted(
            table, heads="heads", kv_heads="kv_heads", head_dim="head_dim", new_tokens="isl", num_seqs="batch"
        )
        | {"context_tokens": (0.0, 0.0)},
        kv_bytes=KV_BYTES[kv_dtype],
        regimes=(),
    )
    regimes = [
        _prefill_regime(curve, part, head_dim, window, device) for head_dim, window, part in _split(table)
    ]
    return curve.model_copy(update={"regimes": tuple(regimes)})


def _prefill_regime(
    curve: PrefillCurve, part: Table, head_dim: int, window: int, device: Device
) -> PrefillRegime:
    def predictor(rows: Table) -> Callable[[PrefillRegime], Float]:
        layout = (rows.number("heads"), rows.number("kv_heads"), head_dim, window)
        isl, past, batch = rows.number("isl"), rows.number("past_kv"), rows.number("batch")
        return lambda fit: curve.base(fit, layout, isl, past, batch)

    def regime(p: Float) -> PrefillRegime:
        return PrefillRegime(
            head_dim=head_dim,
            window=window,
            launch_s=p[0],
            flops_per_s=p[1],
            block_flops_per_s=p[2],
            kv_bytes_per_s=0.8 * device.hbm_bytes_per_s,
            io_bytes_per_s=p[3],
            sharpness=p[4],
            write_s_per_value=tuple(p[5:]),
        )

    rows = part.where(thin(len(part), FIT_ROWS))
    peak, hbm = device.flops_per_s["bfloat16"], device.hbm_bytes_per_s
    predict = predictor(rows)
    block, writes = peak / device.sm_count, len(WRITE_HEADS)
    found = fit_positive(
        lambda p: predict(regime(p)),
        rows.time_s,
        (
            np.r_[1e-6, 0.02 * peak, 0.02 * block, 0.2 * hbm, 1.0, np.full(writes, 0.3 / hbm)],
            np.r_[part.time_s.min(), 0.5 * peak, 0.7 * block, hbm, 2.0, np.full(writes, 4 / hbm)],
            np.r_[5e-5, 1.2 * peak, 2.0 * block, 10 * hbm, 8.0, np.full(writes, 200 / hbm)],
        ),
        alike=slice(5, 5 + writes),
    )
    fit = regime(found)
    residual = np.log(part.time_s / predictor(part)(fit))
    points = _points(part, part.number("batch") * part.number("heads"), np.log2)
    nodes = (np.log2(ROWS), np.log2(PREFILL_KV_HEADS), np.log2(GROUPS))
    lengths, log_factor = _smooth_per_length(part.number("isl"), points, residual, nodes, PREFILL_BANDWIDTH)
    axes = dict(zip(("new_tokens", "rows", "kv_heads", "group"), (np.log2(lengths), *nodes), strict=True))
    return fit.model_copy(update={"table": LogTable.pack(axes, log_factor)})


def fit_decode(table: Table, kv_dtype: str, device: Device) -> DecodeCurve:
    """Fit all (head_dim, window) of one KV dtype."""
    curve = DecodeCurve(
        source=f"attention_decode rows of kv_dtype {kv_dtype}: {len(table)} rows, {table.merged} repeats merged",
        fitted=_fitted(
            table,
            heads="heads",
            kv_heads="kv_heads",
            head_dim="head_dim",
            num_seqs="batch",
            mean_context="kv_len",
        ),
        kv_bytes=KV_BYTES[kv_dtype],
        regimes=(),
    )
    streaming = _streaming_bytes_per_s(table, curve.kv_bytes, device)
    regimes = [
        _decode_regime(curve, part, (head_dim, window), device, streaming)
        for head_dim, window, part in _split(table)
    ]
    return curve.model_copy(update={"regimes": tuple(regimes)})


def _streaming_bytes_per_s(table: Table, kv_bytes: float, device: Device) -> float:
    """Bandwidth of rows whose cache exceeds L2 many times: three quarters of them are slower."""
    moved = 2 * kv_bytes * table.number("kv_heads") * table.number("head_dim")
    moved = moved * table.number("batch") * table.number("kv_len")
    far = (table.number("window") == 0) & (moved > BEYOND_L2 * device.l2_bytes)
    if not far.any():
        return 0.85 * device.hbm_bytes_per_s
    return float(np.quantile(moved[far] / table.time_s[far], 0.75))


def _decode_regime(
    curve: DecodeCurve, part: Table, kind: tuple[int, int], device: Device, streaming: float
) -> DecodeRegime:
    head_dim, window = kind

    def regime(p: Float) -> DecodeRegime:
        return DecodeRegime(
            head_dim=head_dim,
            window=window,
            launch_s=p[0],
            bytes_per_s=p[1],
            hbm_bytes_per_s=streaming,
            query_s_per_value=p[2],
        )

    def predict(rows: Table, fit: DecodeRegime) -> Float:
        layout = (rows.number("heads"), rows.number("kv_heads"), head_dim, window)
        batch = rows.number("batch")
        return curve.base(fit, layout, batch, batch * rows.number("kv_len"))

    rows = part.where(thin(len(part), FIT_ROWS))
    hbm = device.hbm_bytes_per_s
    found = fit_positive(
        lambda p: predict(rows, regime(p)),
        rows.time_s,
        (
            np.array([1e-6, 0.2 * hbm, 0.01 / hbm]),
            np.array([part.time_s.min(), 0.8 * hbm, 4 / hbm]),
            np.array([5e-5, 1.05 * hbm, 1e4 / hbm]),
        ),
    )
    fit = regime(found)
    residual = np.log(part.time_s / predict(part, fit))
    rows_ = part.number("batch") * part.number("kv_heads")
    most = int(np.ceil(np.log2(rows_.max())))
    nodes = (np.arange(most + 1.0), np.log2(KV_HEADS), group_coordinate(GROUPS))
    points = _points(part, rows_, group_coordinate)
    lengths, log_factor = _smooth_per_length(part.number("kv_len"), points, residual, nodes, DECODE_BANDWIDTH)
    log_factor = _monotone(curve, fit, (head_dim, window), lengths, nodes, log_factor)
    axes = dict(zip(("mean_context", "rows", "kv_heads", "group"), (np.log2(lengths), *nodes), strict=True))
    return fit.model_copy(update={"table": LogTable.pack(axes, log_factor)})


def _monotone(
    curve: DecodeCurve,
    fit: DecodeRegime,
    kind: tuple[int, int],
    lengths: Float,
    nodes: tuple[Float, Float, Float],
    log_factor: Float,
) -> Float:
    """Least change that makes the time at the nodes grow with the context (isotonic regression)."""
    context, rows, kv_heads, group = np.meshgrid(
        lengths, 2.0 ** nodes[0], 2.0 ** nodes[1], GROUPS, indexing="ij"
    )
    batch = rows / kv_heads
    layout = (kv_heads * group, kv_heads, *kind)
    log_base = np.log(curve.base(fit, layout, batch, batch * context))
    log_time = (log_base + log_factor).reshape(len(lengths), -1)
    for column in log_time.T:
        column[:] = isotonic_regression(column).x
    return np.asarray(log_time.reshape(log_factor.shape) - log_base)
