"""Measured points -> kernel tables and the device's own figures, as `profile fit --kernels` reads them.

What a GPU computes in float16 arrays stands as bfloat16, the 16-bit type of the price list: both take equally long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from calibration.tables import KEYS, TableError
from hwbackend.device import Identity
from hwbackend.microbench.bench import Result
from hwbackend.microbench.elementwise import KERNELS
from hwbackend.samples import measured
from sim.profile import Device

DEVICE_FILE: Final = "device.json"
_LABELS: Final = {"float16": "bfloat16"}
_WORDS: Final = {
    "cpu": ("DRAM", "copies between two arenas of DRAM"),
    "cuda": ("HBM", "pinned copies over PCIe"),
}

Row = dict[str, int | str | float]


def write_collection(
    folder: Path, results: Sequence[Result], identity: Identity, engine: str, name: str, block_size: int
) -> None:
    """Write the tables and `device.json` beside the samples."""
    for table, rows in kernel_rows(results, block_size).items():
        if not rows:
            continue
        columns = {key: [row[key] for row in rows] for key in (*KEYS[table], "time_us")}
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    device = measured_device(results, identity)
    document = {"name": name, "engine": engine, "device": device.model_dump(), "identity": identity.facts}
    (folder / DEVICE_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_measured_device(path: Path) -> tuple[str, str, Device]:
    """Return name, engine and device of a measured collection."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return str(document["name"]), str(document["engine"]), Device.model_validate(document["device"])
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path}: not a measured device ({str(error).splitlines()[0]})") from error


def kernel_rows(results: Iterable[Result], block_size: int) -> dict[str, list[Row]]:
    """Rows of each kernel table: medians, with the axes that the fits know."""
    found = list(results)

    def rows(benchmark: str, convert: Callable[[dict[str, Any]], Row | None]) -> list[Row]:
        out = []
        for result in measured(found, benchmark):
            row = convert({**result.axes, "num_bytes": result.work.num_bytes})
            assert result.measurement is not None
            if row is not None:
                out.append(row | {"time_us": 1e6 * result.measurement.summary.median_s})
        return out

    def decode(axes: dict[str, Any], lengths: str) -> Row | None:
        usual = axes["layout"] == "paged" and axes["block_size"] == block_size
        if not usual or axes["lengths"] != lengths:
            return None
        return {**_heads(axes), "batch": axes["batch"], "kv_len": axes["kv_len"]}

    return {
        "gemm": rows("gemm", _gemm),
        "attention_prefill": rows("prefill_attention", _prefill),
        "attention_decode": rows("decode_attention", lambda axes: decode(axes, "uniform")),
        "attention_decode_mixed": rows("decode_attention", lambda axes: decode(axes, "mixed")),
        "elementwise": rows("elementwise", _elementwise),
    }


def measured_device(results: Iterable[Result], identity: Identity) -> Device:
    """Bandwidths and peak as measured: what a profile states where nobody has a data sheet."""
    found = list(results)
    memory, link = _WORDS[identity.kind]
    peaks: dict[str, float] = {}
    for result in measured(found, "gemm"):
        assert result.measurement is not None
        dtype = str(result.axes["dtype"])
        rate = result.work.flops / result.measurement.summary.median_s
        peaks[_LABELS.get(dtype, dtype)] = max(rate, peaks.get(_LABELS.get(dtype, dtype), 0.0))
    return Device(
        memory_bytes=identity.memory.total_bytes,
        memory_source=identity.memory.source,
        hbm_bytes_per_s=_best(found, "device_memory", op="copy"),
        flops_per_s=dict(sorted(peaks.items(), key=lambda item: item[0] == "int8")),
        sm_count=identity.compute_units,
        l2_bytes=identity.cache_bytes,
        pcie_bytes_per_s=_best(found, "transfer", direction="load", memory="pinned"),
        nvlink_bytes_per_s=None,
        gpus_per_node=1,
        compute_capability=identity.compute_capability,
        source=f"measured on {identity.name}: {memory} by the best copy, link by the best of {link}"
        + (", peaks by the fastest product" if peaks else ""),
    )


def _best(results: list[Result], benchmark: str, **axes: str) -> float:
    """Bytes per second of the fastest point with these axes."""
    rates = [
        result.work.num_bytes / result.measurement.summary.median_s
        for result in measured(results, benchmark)
        if result.measurement is not None and all(result.axes[axis] == value for axis, value in axes.items())
    ]
    if not rates:
        raise TableError(f"samples: none of {benchmark} with {axes}; raise --budget")
    return max(rates)


def _label(dtype: str) -> str:
    return _LABELS.get(dtype, dtype)


def _heads(axes: dict[str, Any]) -> Row:
    layout: Row = {axis: axes[axis] for axis in ("heads", "kv_heads", "head_dim")}
    return {**layout, "kv_dtype": _label(axes["kv_dtype"]), "window": 0}


def _gemm(axes: dict[str, Any]) -> Row | None:
    if axes["dtype"] == "int8":
        return None  # no model of ours computes in it
    return {"dtype": _label(axes["dtype"]), **{axis: axes[axis] for axis in "mnk"}}


def _prefill(axes: dict[str, Any]) -> Row:
    return {**_heads(axes), "batch": 1, "isl": axes["isl"], "past_kv": axes["past_kv"]}


def _elementwise(axes: dict[str, Any]) -> Row | None:
    if axes["op"] != "layer":
        return None
    per_token = round(axes["num_bytes"] / axes["tokens"])
    return {"kernels": KERNELS["layer"], "tokens": axes["tokens"], "bytes_per_token": per_token}
