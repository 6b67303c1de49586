"""Kernel tables of one system -> Profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np

from calibration.collection import Collection
from calibration.fit_decode import fit_decode
from calibration.fit_gemm import fit_gemm
from calibration.fit_layers import fit_decode_layers, fit_gemm_layers, fit_prefill_layers, fit_shared_layers
from calibration.fit_measured import (
    fit_decode_measured,
    fit_elementwise_measured,
    fit_gemm_measured,
    fit_prefill_measured,
)
from calibration.fit_moe import fit_moe
from calibration.fit_prefill import fit_prefill
from calibration.fit_small import fit_all_reduce, fit_elementwise
from calibration.tables import Table, TableError
from sim.curves.decode import DecodeCurve
from sim.curves.gemm import WEIGHT_BYTES as GEMM_WEIGHT_BYTES
from sim.curves.gemm import GemmCurve
from sim.curves.heads import KV_BYTES
from sim.curves.moe import MOE_WEIGHT_BYTES
from sim.curves.prefill import PrefillCurve
from sim.profile import Device, Profile

C = TypeVar("C")
GEMM_DTYPES = ("bfloat16", "fp8", "nvfp4", "fp8_block")
"""In the order of fitting: fp8_block leans on fp8."""
FEWEST_GEMM_SHAPES = 50
"""A dtype measured at fewer (n, k) gets no curve (fp8_block of RTX PRO 6000: 7 tiny ones)."""

Log = Callable[[str], None]


def quiet(_message: str) -> None:
    """Say nothing."""


def fit_profile(rows: Collection, *, created: str | None = None, log: Log = quiet) -> Profile:
    """Fit every term on all rows."""
    if rows.measured:
        return _fit_measured(rows, created, log)
    if rows.layers:
        return _fit_layers(rows, created, log)
    return Profile(
        schema=1,
        name=rows.name,
        engine=rows.engine,
        created=created or datetime.now(UTC).date().isoformat(),
        device=rows.device,
        gemm=fit_gemms(rows.tables["gemm"], rows.device, log),
        prefill_attention=_each(rows, "attention_prefill", "kv_dtype", KV_BYTES, fit_prefill, log),
        decode_attention=_each(rows, "attention_decode", "kv_dtype", KV_BYTES, fit_decode, log),
        moe=_each(rows, "moe", "dtype", MOE_WEIGHT_BYTES, fit_moe, log) if "moe" in rows.tables else {},
        all_reduce=fit_all_reduce(rows.tables["allreduce"], rows.tables.get("nccl"))
        if "allreduce" in rows.tables
        else None,
        elementwise=fit_elementwise(rows.tables["gemm"].only(dtype="bfloat16"), rows.device),
    )


def _fit_measured(rows: Collection, created: str | None, log: Log) -> Profile:
    if "elementwise" not in rows.tables:
        raise TableError(f"{rows.name}: no table elementwise.parquet beside those of gemm and attention")
    return _fit_few_shapes(rows, created, log)


def _fit_layers(rows: Collection, created: str | None, log: Log) -> Profile:
    fitted = _fit_few_shapes(rows, created, log)
    source = f"norms, rotary embedding and activation of layers: {len(rows.tables['elementwise'])} rows"
    return fitted.model_copy(
        update={
            "shared_attention": _each(rows, "attention_shared", "kv_dtype", KV_BYTES, fit_shared_layers, log),
            "elementwise": fitted.elementwise.model_copy(update={"source": source}),
        }
    )


def _fit_few_shapes(rows: Collection, created: str | None, log: Log) -> Profile:
    fits = few_shapes_fits(rows)
    return Profile(
        schema=1,
        name=rows.name,
        engine=rows.engine,
        created=created or datetime.now(UTC).date().isoformat(),
        device=rows.device,
        gemm=_each(rows, "gemm", "dtype", GEMM_WEIGHT_BYTES, fits.gemm, log),
        prefill_attention=_each(rows, "attention_prefill", "kv_dtype", KV_BYTES, fits.prefill, log),
        decode_attention=_each(rows, "attention_decode", "kv_dtype", KV_BYTES, fits.decode, log),
        elementwise=fit_elementwise_measured(rows.tables["elementwise"]),
    )


@dataclass(frozen=True)
class FewShapesFits:
    """How the terms of a collection of few shapes are fitted, each from a table, a dtype and the device."""

    gemm: Callable[[Table, str, Device], GemmCurve]
    prefill: Callable[[Table, str, Device], PrefillCurve]
    decode: Callable[[Table, str, Device], DecodeCurve]


def few_shapes_fits(rows: Collection) -> FewShapesFits:
    """Fits of whole layers, or of a calibration of ours."""
    if rows.layers:
        return FewShapesFits(fit_gemm_layers, fit_prefill_layers, fit_decode_layers)
    return FewShapesFits(fit_gemm_measured, fit_prefill_measured, fit_decode_measured)


def fit_gemms(table: Table, device: Device, log: Log = quiet) -> dict[str, GemmCurve]:
    """Fit all dtypes with enough rows."""
    curves: dict[str, GemmCurve] = {}
    for dtype in GEMM_DTYPES:
        part = table.only(dtype=dtype)
        shapes = np.unique(part.number("n") * 1e6 + part.number("k"))
        if len(shapes) < FEWEST_GEMM_SHAPES:
            continue
        log(f"gemm {dtype}: {len(part)} rows")
        stand_in = curves.get("fp8") if dtype == "fp8_block" else None
        curves[dtype] = fit_gemm(part, dtype, device, stand_in=stand_in)
    return curves


def _each(
    rows: Collection,
    table: str,
    column: str,
    known: Mapping[str, float],
    fit: Callable[[Table, str, Device], C],
    log: Log,
) -> dict[str, C]:
    curves = {}
    for dtype in map(str, np.unique(rows.tables[table][column])):
        if dtype not in known:
            log(f"{table} {dtype}: no rule for its bytes, left out")
            continue
        part = rows.tables[table].only(**{column: dtype})
        log(f"{table} {dtype}: {len(part)} rows")
        curves[dtype] = fit(part, dtype, rows.device)
    return curves
