"""How good a profile is: every term refitted without whole shapes, then asked about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from calibration.collection import Collection
from calibration.fit import GEMM_DTYPES, Log, few_shapes_fits, fit_gemms, quiet
from calibration.fit_decode import fit_decode
from calibration.fit_gemm import hidden_by_host
from calibration.fit_measured import (
    fit_elementwise_measured,
    predict_elementwise,
)
from calibration.fit_moe import fit_moe, moe_shapes, predict_moe
from calibration.fit_prefill import fit_prefill
from calibration.fit_small import fit_all_reduce
from calibration.predict import predict_all_reduce, predict_decode, predict_gemm, predict_prefill
from calibration.roofline import Work, decode_work, fit_roofline, gemm_work, moe_work, prefill_work
from calibration.tables import Table
from sim.curves.term import Curve, Float
from sim.profile import Device, Profile, Residual

FOLDS = 3
SHARE = 0.2
"""Of the shapes held out in each fold, drawn with the fold's number as seed."""
SPIKE = 0.2
"""A row off the curve fitted on all rows by more than this factor's logarithm counts as a spike."""
BIG = 512
"""GEMM shapes of at least this n and k are judged: narrower ones are all launch."""

C = TypeVar("C")
_POINTS = "single points"
Fit = Callable[[Table], Callable[[Table], Float]]
"""Fits on a table and returns the prediction of another."""


def missing_tables(rows: Collection, profile: Profile) -> list[str]:
    """Name the tables that the profile has a term for and the collection lacks; such terms cannot be judged."""
    optional = {"moe": bool(profile.moe), "allreduce": profile.all_reduce is not None}
    return [name for name, fitted in optional.items() if fitted and name not in rows.tables]


def missing_rows(rows: Collection, profile: Profile) -> list[str]:
    """Name the dtypes of the profile's terms that a table there is has no rows of."""
    found: dict[str, tuple[Mapping[str, Curve], str]] = {
        "gemm": (profile.gemm, "dtype"),
        "attention_prefill": (profile.prefill_attention, "kv_dtype"),
        "attention_decode": (profile.decode_attention, "kv_dtype"),
        "moe": (profile.moe, "dtype"),
    }
    return [
        f"{dtype} in {name}.parquet"
        for name, (curves, column) in found.items()
        if name in rows.tables
        for dtype in curves
        if not _has(rows, name, column, dtype)
    ]


def _has(rows: Collection, table: str, column: str, dtype: str) -> bool:
    return bool((rows.tables[table][column] == dtype).any())


def residuals(rows: Collection, profile: Profile, log: Log = quiet) -> list[Residual]:
    """Judge every term of `profile` that `rows` has a table for; the profile was fitted on all of them."""
    out = []
    for residual in _all_terms(rows, profile):
        log(f"{residual.term}: median {residual.median:.1%}, P90 {residual.p90:.1%} held out")
        out.append(residual)
    return out


def _all_terms(rows: Collection, profile: Profile) -> Iterator[Residual]:
    if rows.measured or rows.layers:
        yield from measured_terms(rows, profile)
        return
    yield from _gemm(rows, profile)
    yield from _attention(rows, profile)
    yield from _moe(rows, profile)
    yield from _all_reduce(rows, profile)


def measured_terms(rows: Collection, profile: Profile) -> Iterator[Residual]:
    """Terms of a calibration: the shapes are those of the models, so single points of them are held out.

    Mixed lengths and elementwise chains stand beside them: of the former none is fitted, so all are judged.
    """
    tables = rows.tables
    fits = few_shapes_fits(rows)
    for dtype, gemm in profile.gemm.items():
        table = tables["gemm"].only(dtype=dtype)
        work = gemm_work(table, gemm.weight_bytes)
        m = table.number("m")
        inner = (m > m.min()) & (m < m.max())
        term = f"gemm/{dtype}"
        yield _by_points(
            term,
            table,
            fits.gemm,
            predict_gemm,
            dtype,
            rows,
            work,
            gemm,
            inner if inner.any() else None,
        )
    for dtype, prefill in profile.prefill_attention.items():
        table = tables["attention_prefill"].only(kv_dtype=dtype)
        work = prefill_work(table, prefill.kv_bytes)
        term = f"prefill_attention/{dtype}"
        yield _by_points(term, table, fits.prefill, predict_prefill, dtype, rows, work, prefill)
    for dtype, decode in profile.decode_attention.items():
        table = tables["attention_decode"].only(kv_dtype=dtype)
        work, term = decode_work(table, decode.kv_bytes), f"decode_attention/{dtype}"
        yield _by_points(term, table, fits.decode, predict_decode, dtype, rows, work, decode)
        mixed = tables["attention_decode_mixed"].only(kv_dtype=dtype) if _has_mixed(rows, dtype) else None
        if mixed is not None:
            error = np.abs(predict_decode(decode, mixed) / mixed.time_s - 1)
            yield _residual(f"{term}, mixed lengths", "all batches of unequal lengths", error)
    table, small = tables["elementwise"], profile.elementwise
    work = Work(np.zeros(len(table)), table.number("tokens") * table.number("bytes_per_token"))

    def fit(part: Table) -> Callable[[Table], Float]:
        curve = fit_elementwise_measured(part)
        return lambda asked: predict_elementwise(curve, asked)

    spikes = spike_share(predict_elementwise(small, table), table)
    yield judge("elementwise", _POINTS, table, _each_row(table), None, fit, work, spikes)


def _by_points(
    term: str,
    table: Table,
    fit: Callable[[Table, str, Device], C],
    predict: Callable[[C, Table], Float],
    dtype: str,
    rows: Collection,
    work: Work,
    curve: C,
    judged: NDArray[np.bool_] | None = None,
) -> Residual:
    def refit(part: Table) -> Callable[[Table], Float]:
        found = fit(part, dtype, rows.device)
        return lambda asked: predict(found, asked)

    spikes = spike_share(predict(curve, table), table)
    what = _POINTS if judged is None else f"{_POINTS} between the fewest and the most tokens"
    return judge(term, what, table, _each_row(table), judged, refit, work, spikes)


def _has_mixed(rows: Collection, dtype: str) -> bool:
    return "attention_decode_mixed" in rows.tables and _has(rows, "attention_decode_mixed", "kv_dtype", dtype)


def _each_row(table: Table) -> Float:
    return np.arange(len(table), dtype=np.float64)


def _residual(term: str, held_out: str, error: Float) -> Residual:
    return Residual(
        term=term,
        held_out=held_out,
        rows=len(error),
        median=_round(np.median(error)),
        p90=_round(np.quantile(error, 0.9)),
        spike_share=_round((error > SPIKE).mean()),
    )


def _gemm(rows: Collection, profile: Profile) -> Iterator[Residual]:
    device = rows.device
    known = [name for name in GEMM_DTYPES if name in profile.gemm and _has(rows, "gemm", "dtype", name)]
    for dtype in known:
        if dtype == "fp8_block" and "fp8" not in known:
            continue  # it leans on fp8
        together = ("fp8", dtype) if dtype == "fp8_block" else (dtype,)
        table = rows.tables["gemm"].where(np.isin(rows.tables["gemm"]["dtype"], together))
        mine = table["dtype"] == dtype

        def fit(part: Table, dtype: str = dtype) -> Callable[[Table], Float]:
            curve = fit_gemms(part, device)[dtype]
            return lambda asked: predict_gemm(curve, asked)

        shape = table.number("n") * 1e6 + table.number("k")
        judged = mine & (table.number("n") >= BIG) & (table.number("k") >= BIG)
        what = f"(n, k) of at least {BIG}"
        if dtype == "fp8_block":
            judged[mine] &= ~hidden_by_host(table.where(mine), profile.gemm["fp8"])[0]
            mine &= judged
            what += ", rows above the host's launch"
        curve = profile.gemm[dtype]
        spikes = spike_share(predict_gemm(curve, table.where(mine)), table.where(mine))
        work = gemm_work(table, curve.weight_bytes)
        yield judge(f"gemm/{dtype}", what, table, shape, judged, fit, work, spikes)


def _attention(rows: Collection, profile: Profile) -> Iterator[Residual]:
    device = rows.device
    for kv_dtype, prefill in profile.prefill_attention.items():
        if not _has(rows, "attention_prefill", "kv_dtype", kv_dtype):
            continue
        table = rows.tables["attention_prefill"].only(kv_dtype=kv_dtype)

        def fit(part: Table, kv_dtype: str = kv_dtype) -> Callable[[Table], Float]:
            curve = fit_prefill(part, kv_dtype, device)
            return lambda asked: predict_prefill(curve, asked)

        spikes = spike_share(predict_prefill(prefill, table), table)
        work = prefill_work(table, prefill.kv_bytes)
        yield judge(f"prefill_attention/{kv_dtype}", _LAYOUT, table, _layout(table), None, fit, work, spikes)
    for kv_dtype, decode in profile.decode_attention.items():
        if not _has(rows, "attention_decode", "kv_dtype", kv_dtype):
            continue
        table = rows.tables["attention_decode"].only(kv_dtype=kv_dtype)

        def fit_d(part: Table, kv_dtype: str = kv_dtype) -> Callable[[Table], Float]:
            curve = fit_decode(part, kv_dtype, device)
            return lambda asked: predict_decode(curve, asked)

        spikes = spike_share(predict_decode(decode, table), table)
        work = decode_work(table, decode.kv_bytes)
        yield judge(f"decode_attention/{kv_dtype}", _LAYOUT, table, _layout(table), None, fit_d, work, spikes)


_LAYOUT = "(heads, kv_heads), with all their head_dims and windows"


def _layout(table: Table) -> Float:
    return table.number("heads") * 1e4 + table.number("kv_heads")


def _moe(rows: Collection, profile: Profile) -> Iterator[Residual]:
    device = rows.device
    if "moe" not in rows.tables:
        return
    for dtype, curve in profile.moe.items():
        if not _has(rows, "moe", "dtype", dtype):
            continue
        table = rows.tables["moe"].only(dtype=dtype)
        if curve.distributions:  # of the profile; tables of another system may have more
            table = table.where(np.isin(table["distribution"], curve.distributions))

        def fit(part: Table, dtype: str = dtype) -> Callable[[Table], Float]:
            found = fit_moe(part, dtype, device)
            return lambda asked: predict_moe(found, asked)

        shape = moe_shapes(table)[1].astype(np.float64)
        spikes = spike_share(predict_moe(curve, table), table)
        work = moe_work(table, curve.weight_bytes)
        yield judge(f"moe/{dtype}", "(model layer, tp, ep)", table, shape, None, fit, work, spikes)


def _all_reduce(rows: Collection, profile: Profile) -> Iterator[Residual]:
    if profile.all_reduce is None or "allreduce" not in rows.tables:
        return
    table = rows.tables["allreduce"].only(impl="vllm_graph")

    def fit(part: Table) -> Callable[[Table], Float]:
        curve = fit_all_reduce(part, None)
        return lambda asked: predict_all_reduce(curve, asked)

    work = Work(np.zeros(len(table)), table.number("message_bytes"))
    spikes = spike_share(predict_all_reduce(profile.all_reduce, table), table)
    size = table.number("message_bytes")
    inner = (size > size.min()) & (size < size.max())
    yield judge("all_reduce", "message size, for all GPU counts", table, size, inner, fit, work, spikes)


def spike_share(predicted: Float, table: Table) -> float:
    return float((np.abs(np.log(predicted / table.time_s)) > SPIKE).mean())


def judge(
    term: str,
    held_out: str,
    table: Table,
    shape: Float,
    judged: NDArray[np.bool_] | None,
    fit: Fit,
    work: Work,
    spikes: float,
) -> Residual:
    judged = np.ones(len(table), dtype=bool) if judged is None else judged
    shapes = np.unique(shape[judged])
    ours, theirs = [], []
    for fold in range(FOLDS):
        count = max(1, round(SHARE * len(shapes)))
        chosen = np.random.default_rng(fold).choice(shapes, count, replace=False)
        held = np.isin(shape, chosen)
        asked = held & judged
        truth = table.time_s[asked]
        ours.append(np.abs(fit(table.where(~held))(table.where(asked)) / truth - 1))
        line = fit_roofline(work.where(~held & judged), table.time_s[~held & judged])
        theirs.append(np.abs(line(work.where(asked)) / truth - 1))
    error, yardstick = np.concatenate(ours), np.concatenate(theirs)
    return Residual(
        term=term,
        held_out=f"{SHARE:.0%} of {held_out}, {FOLDS} draws",
        rows=len(error),
        median=_round(np.median(error)),
        p90=_round(np.quantile(error, 0.9)),
        spike_share=_round(spikes),
        roofline_median=_round(np.median(yardstick)),
        roofline_p90=_round(np.quantile(yardstick, 0.9)),
    )


def _round(value: float | np.floating) -> float:
    return round(float(value), 4)
