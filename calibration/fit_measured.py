"""Fits of a calibration: few shapes, those of the models to be simulated, each at a few sizes.

The curves are those of the shipped profiles. Where kernel tables have thousands of shapes and a spike filter, here
every row counts: a base law fitted to all of them, then local regression of what remains, which passes near each row.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from calibration.fit_decode import decode_curve
from calibration.fit_prefill import prefill_regime
from calibration.head_rows import fitted, split
from calibration.regression import fit_positive, smooth
from calibration.tables import Table
from sim.curves.decode import DecodeCurve
from sim.curves.elementwise import ElementwiseCurve
from sim.curves.gemm import WEIGHT_BYTES, GemmCurve, Tile
from sim.curves.heads import KV_BYTES
from sim.curves.prefill import PrefillCurve
from sim.curves.table import LogTable
from sim.curves.term import Float
from sim.profile import Device

LONGEST_LAUNCH = 5e-3
"""Seconds: a call into an array library on a busy CPU; a GPU's launch is far below."""
LEAST_FLOPS = 1e9
"""Rates below this are no device's (`sim/curves/term.py`)."""
_BANDWIDTH = np.array([0.5, 0.35, 0.35])
"""Of the local regression of GEMM, in octaves of m, n and k: a shape takes hardly anything from the others."""
_ROUNDS, _HUBER = 20, 0.05


def fit_gemm_measured(table: Table, dtype: str, device: Device) -> GemmCurve:
    """Roofline t0 + (2 m n k / P)^p + (bytes / W)^p, without tiles; then the measured shapes themselves."""
    m, n, k = (table.number(axis) for axis in "mnk")
    bare = gemm_roofline(table, dtype, device)
    nodes = [np.log2(np.unique(values)) for values in (m, n, k)]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*nodes, indexing="ij")], axis=1)
    places = np.log2(np.stack([m, n, k], axis=1))
    residual = np.log(table.time_s / bare.base(m, n, k))
    cube = smooth(places, residual, grid, _BANDWIDTH).reshape([len(axis) for axis in nodes])
    axes = dict(zip("mnk", nodes, strict=True))
    return bare.model_copy(update={"table": LogTable.pack(axes, cube)})


def gemm_roofline(table: Table, dtype: str, device: Device) -> GemmCurve:
    """The base law alone."""
    m, n, k = (table.number(axis) for axis in "mnk")
    peak = device.flops_per_s.get(dtype, next(iter(device.flops_per_s.values()))) / device.sm_count
    memory = device.hbm_bytes_per_s

    def curve(p: Float) -> GemmCurve:
        return GemmCurve(
            source=f"gemm of dtype {dtype}: {len(table)} points measured here",
            fitted={
                axis: (float(values.min()), float(values.max()))
                for axis, values in zip("mnk", (m, n, k), strict=True)
            },
            launch_s=p[0],
            bytes_per_s=p[1],
            sharpness=p[2],
            quantised=0.0,
            sms=device.sm_count,
            tiles=(Tile(m=1, n=1, flops_per_s=p[3], start_s=0.0),),
            weight_bytes=WEIGHT_BYTES[dtype],
        )

    least = float(table.time_s.min())
    found = fit_positive(
        lambda p: curve(p).base(m, n, k),
        table.time_s,
        (
            np.array([1e-7, 0.02 * memory, 0.5, max(LEAST_FLOPS, 0.01 * peak)]),
            np.array([0.3 * least, 0.8 * memory, 2.0, max(LEAST_FLOPS, 0.8 * peak)]),
            np.array([max(least, 2e-7), 4.0 * memory, 8.0, max(2 * LEAST_FLOPS, 1.5 * peak)]),
        ),
    )
    return curve(found)


def fit_prefill_measured(table: Table, kv_dtype: str, device: Device) -> PrefillCurve:
    """As for kernel tables, with rows that have context."""
    axes = {"heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim"}
    kv_bytes = KV_BYTES[kv_dtype]
    return PrefillCurve(
        source=f"prefill attention over KV of {kv_dtype}: {len(table)} points measured here, with and without context",
        fitted=fitted(table, **axes, new_tokens="isl", context_tokens="past_kv", num_seqs="batch"),
        kv_bytes=kv_bytes,
        regimes=tuple(
            prefill_regime(part, kv_bytes, (dim, window), device, longest_launch_s=LONGEST_LAUNCH)
            for dim, window, part in split(table)
        ),
    )


def fit_decode_measured(table: Table, kv_dtype: str, device: Device) -> DecodeCurve:
    """As for kernel tables; memory's bandwidth is the measured one."""
    bandwidths = (device.hbm_bytes_per_s, device.hbm_bytes_per_s)
    source = f"decode attention over KV of {kv_dtype}: {len(table)} points measured here"
    return decode_curve(table, kv_dtype, source, bandwidths, longest_launch_s=LONGEST_LAUNCH)


def fit_elementwise_measured(table: Table) -> ElementwiseCurve:
    """Launch and bandwidth by non-negative least squares of relative errors, large ones weighted down."""
    kernels, tokens, size = (table.number(axis) for axis in ("kernels", "tokens", "bytes_per_token"))
    terms = np.stack([kernels, tokens * size], axis=1) / table.time_s[:, None]
    scale = terms.max(axis=0)
    weight, found = np.ones(len(table)), np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        found, _ = nnls(terms / scale * root[:, None], root)
        weight = _HUBER / np.maximum(np.abs(terms / scale @ found - 1), _HUBER)
    launch, per_byte = found / scale
    return ElementwiseCurve(
        source=f"chains of a layer's small kernels: {len(table)} points measured here",
        fitted={"tokens": (float(tokens.min()), float(tokens.max()))},
        launch_s=max(float(launch), 1e-8),
        bytes_per_s=float(np.clip(1 / max(per_byte, 1e-15), 1e6, 1e15)),
    )


def predict_elementwise(curve: ElementwiseCurve, table: Table) -> Float:
    """Seconds of chains."""
    kernels, tokens, size = (table.number(axis) for axis in ("kernels", "tokens", "bytes_per_token"))
    return np.asarray(kernels * curve.seconds(tokens, size / kernels))
