"""A profile against fresh measurements of the device: whether it has drifted since it was made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from calibration.calibrate import Progress, measure_points
from calibration.fit_measured import predict_elementwise
from calibration.measurements import kernel_rows
from calibration.points import Extent, Point
from calibration.predict import predict_decode, predict_gemm, predict_prefill
from calibration.tables import KEYS, Table, clean
from hwbackend.device import Device
from hwbackend.microbench.bench import Result
from hwbackend.samples import SampleStore
from sim.curves.term import Float
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class FreshTerm:
    """measured / predicted - 1 over the points of a term: its median and spread, and the size of the errors."""

    term: str
    points: int
    change: float
    lowest: float
    highest: float
    median_error: float
    p90_error: float
    drifted: bool


def measure_fresh(
    device: Device, points: Sequence[Point], budget_s: float, tell: Callable[[Progress], None]
) -> list[Result]:
    """Measure again, beside any samples that there are."""
    with tempfile.TemporaryDirectory(prefix="servetwin-fresh-") as folder:
        store = SampleStore(Path(folder) / "raw", device.identity.fingerprint)
        measure_points(device, points, budget_s, store, tell)
        return store.results


def judge_fresh(
    profile: Profile, results: Sequence[Result], extent: Extent, tolerance: float
) -> list[FreshTerm]:
    """Ask the profile about what was measured; a term has drifted where its median is off by more than `tolerance`."""
    tables = _tables(results, extent.block_size)
    out = []
    for term, (table, predicted) in predictions(profile, tables).items():
        ratio = table.time_s / predicted
        change, error = float(np.median(ratio)) - 1, np.abs(predicted / table.time_s - 1)
        out.append(
            FreshTerm(
                term=term,
                points=len(table),
                change=change,
                lowest=float(ratio.min()) - 1,
                highest=float(ratio.max()) - 1,
                median_error=float(np.median(error)),
                p90_error=float(np.quantile(error, 0.9)),
                drifted=abs(change) > tolerance,
            )
        )
    return out


def predictions(profile: Profile, tables: dict[str, Table]) -> dict[str, tuple[Table, Float]]:
    """By term that both have: the rows, and what the profile says of them [s]."""
    found: dict[str, tuple[Table, Float]] = {}

    def ask(term: str, table: str, column: str, dtype: str, predict: Callable[[Table], Float]) -> None:
        rows = tables[table].only(**{column: dtype}) if table in tables else None
        if rows is not None and len(rows):
            found[f"{term}/{dtype}"] = (rows, predict(rows))

    for dtype, gemm in profile.gemm.items():
        ask("gemm", "gemm", "dtype", dtype, partial(predict_gemm, gemm))
    for dtype, prefill in profile.prefill_attention.items():
        ask(
            "prefill_attention",
            "attention_prefill",
            "kv_dtype",
            dtype,
            partial(predict_prefill, prefill),
        )
    for dtype, decode in profile.decode_attention.items():
        ask(
            "decode_attention",
            "attention_decode",
            "kv_dtype",
            dtype,
            partial(predict_decode, decode),
        )
    if "elementwise" in tables:
        table = tables["elementwise"]
        found["elementwise"] = (table, predict_elementwise(profile.elementwise, table))
    return found


def _tables(results: Sequence[Result], block_size: int) -> dict[str, Table]:
    tables = {}
    for name, rows in kernel_rows(results, block_size).items():
        if rows:
            columns = {key: np.array([row[key] for row in rows]) for key in KEYS[name]}
            seconds = np.array([float(row["time_us"]) for row in rows]) * 1e-6
            tables[name] = clean(Path("fresh measurements"), name, columns, seconds)
    return tables
