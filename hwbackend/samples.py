"""Raw samples on disk: a row each time that a point is measured, in Parquet parts that are only ever added to.

A point that was measured several times, at times apart, stands for its middle one (the lower of two): what disturbs
a machine for a second or two then does not decide.

benchmark, axes (JSON)        the point
samples_s                     every sample [s a call], in order; empty where the point was skipped
num_bytes, flops              of a call
skipped                       why it was not measured; empty where it was
median_s ... others_share     the harness's summary
device, measured_unix_s       the fingerprint of the device, and when
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from hwbackend.harness import Measurement, Summary, Work
from hwbackend.microbench.bench import Axes, Result
from workloads.errors import ConfigError, InputError
from workloads.replacing import replacing

_PARTS: Final = "samples-*.parquet"
_SUMMARY: Final = tuple(Summary.__dataclass_fields__)

Key = tuple[str, str]
"""Benchmark and axes."""


def key_of(benchmark: str, axes: Axes) -> Key:
    """Name a point."""
    return benchmark, json.dumps(dict(axes), sort_keys=True)


class SampleStore:
    """A folder of parts, of one device."""

    def __init__(self, folder: Path, device: str, *, resume: bool = False) -> None:
        if not folder.parent.is_dir():
            raise InputError(f"{folder}: there is no directory {folder.parent}; make it first")
        known = sorted(folder.glob(_PARTS)) if folder.is_dir() else []
        if known and not resume:
            raise InputError(f"{folder}: has samples already; --resume adds to them, or give another --raw")
        self.folder, self._device = folder, device
        self._next = 1 + max((int(path.stem.rpartition("-")[2]) for path in known), default=0)
        self._passes: dict[Key, list[Result]] = {}
        for path in known:
            self._take(path)
        folder.mkdir(exist_ok=True)

    def __len__(self) -> int:
        """Points that were measured, or skipped with a reason."""
        return len(self._passes)

    def times(self, benchmark: str, axes: Axes) -> int:
        """How often a point was measured."""
        return len(self._passes.get(key_of(benchmark, axes), ()))

    @property
    def results(self) -> list[Result]:
        """Each point by its middle measurement."""
        return [middle(passes) for passes in self._passes.values()]

    def add(self, results: Sequence[Result]) -> None:
        """Write a part with these; all of it is there, or none."""
        if not results:
            return
        rows = [_row(result, self._device) for result in results]
        with replacing(self.folder / f"samples-{self._next:04d}.parquet") as draft:
            pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), draft, compression="zstd")
        self._next += 1
        for result in results:
            self._passes.setdefault(key_of(result.benchmark, result.axes), []).append(result)

    def _take(self, path: Path) -> None:
        rows = _rows(path)
        for row in rows:
            if row["device"] != self._device:
                raise ConfigError(
                    f"{path}: was measured on {row['device']}, and this is {self._device}; give another --raw"
                )
            result = _result(row)
            self._passes.setdefault(key_of(result.benchmark, result.axes), []).append(result)


def middle(passes: Sequence[Result]) -> Result:
    """Return the measurement whose median is the middle one, of an even number the lower."""
    timed = [(r.measurement.summary.median_s, i) for i, r in enumerate(passes) if r.measurement is not None]
    return passes[sorted(timed)[(len(timed) - 1) // 2][1]] if timed else passes[-1]


def read_samples(folder: Path) -> list[Result]:
    """Read all parts of a folder: each point by its middle measurement."""
    found: dict[Key, list[Result]] = {}
    for path in sorted(folder.glob(_PARTS)):
        for row in _rows(path):
            result = _result(row)
            found.setdefault(key_of(result.benchmark, result.axes), []).append(result)
    if not found:
        raise InputError(f"{folder}: no samples; `servetwin calibrate --raw` writes them")
    return [middle(passes) for passes in found.values()]


def measured(results: Iterable[Result], benchmark: str) -> list[Result]:
    """Return the points of one benchmark that have samples."""
    return [r for r in results if r.benchmark == benchmark and r.measurement is not None]


_NUMBER: Final = pa.float64()
_SCHEMA: Final = pa.schema(
    [
        ("benchmark", pa.string()),
        ("axes", pa.string()),
        ("samples_s", pa.list_(_NUMBER)),
        ("num_bytes", _NUMBER),
        ("flops", _NUMBER),
        ("skipped", pa.string()),
        ("samples", pa.int64()),
        ("median_s", _NUMBER),
        ("low_s", _NUMBER),
        ("high_s", _NUMBER),
        ("confidence", _NUMBER),
        ("calls_per_sample", pa.int64()),
        ("stopped", pa.string()),
        ("throttled", pa.bool_()),
        ("others_share", _NUMBER),
        ("device", pa.string()),
        ("measured_unix_s", _NUMBER),
    ]
)


def _row(result: Result, device: str) -> dict[str, Any]:
    measurement = result.measurement
    summary = dict.fromkeys(_SUMMARY) if measurement is None else asdict(measurement.summary)
    return {
        "benchmark": result.benchmark,
        "axes": json.dumps(result.axes, sort_keys=True),
        "samples_s": [] if measurement is None else list(measurement.samples_s),
        "num_bytes": result.work.num_bytes,
        "flops": result.work.flops,
        "skipped": result.skipped or "",
        **summary,
        "device": device,
        "measured_unix_s": time.time(),
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    missing = [name for name in _SCHEMA.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: no column {missing[0]}; not samples of `servetwin calibrate`")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _result(row: dict[str, Any]) -> Result:
    measurement = None
    if not row["skipped"]:
        summary = Summary(**{name: row[name] for name in _SUMMARY})
        measurement = Measurement(tuple(row["samples_s"]), summary)
    work = Work(row["num_bytes"], row["flops"])
    return Result(row["benchmark"], json.loads(row["axes"]), work, measurement, row["skipped"] or None)
