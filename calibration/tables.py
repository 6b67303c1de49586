"""Kernel tables: measured rows as columns, repeated keys merged by their median, unusable rows refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workloads.errors import InputError

Column = NDArray[Any]

KEYS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "attention_prefill": ("kv_dtype", "batch", "isl", "past_kv", "heads", "kv_heads", "head_dim", "window"),
    "attention_decode": ("kv_dtype", "batch", "kv_len", "heads", "kv_heads", "head_dim", "window"),
    "attention_decode_mixed": (
        "kv_dtype",
        "batch",
        "kv_len",
        "heads",
        "kv_heads",
        "head_dim",
        "window",
    ),  # kv_len on average
    "attention_shared": (
        "kv_dtype",
        "batch",
        "kv_len",
        "chunk",
        "chunk_s",
        "launch_s",
        "heads",
        "kv_heads",
        "head_dim",
        "window",
    ),  # decodes beside a chunk; what the chunk takes alone, and the launch with next to nothing in it
    "elementwise": ("kernels", "tokens", "bytes_per_token"),  # of all its kernels together
    "moe": ("dtype", "tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep", "distribution"),
    "allreduce": ("impl", "gpus", "message_bytes"),
    "nccl": ("op", "dtype", "gpus", "message_bytes"),
}
"""The axes of each table; times stand beside them."""


class TableError(InputError):
    """A kernel table is missing, lacks a column or has unusable rows."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length; `time_s` is seconds, the others are the axes of the measurement."""

    name: str
    columns: dict[str, Column]
    time_s: NDArray[np.float64]
    merged: int = 0
    """Rows that repeated another row's axes."""

    def __len__(self) -> int:
        return len(self.time_s)

    def __getitem__(self, column: str) -> Column:
        return self.columns[column]

    def number(self, column: str) -> NDArray[np.float64]:
        return np.asarray(self.columns[column], dtype=np.float64)

    def where(self, mask: NDArray[np.bool_]) -> Table:
        return Table(self.name, {c: v[mask] for c, v in self.columns.items()}, self.time_s[mask])

    def only(self, **values: str | int) -> Table:
        mask = np.ones(len(self), dtype=bool)
        for column, value in values.items():
            mask &= self.columns[column] == value
        return self.where(mask)


def read_columns(path: Path, names: list[str]) -> dict[str, Column]:
    """Read columns of a Parquet file as arrays."""
    try:
        table = pq.read_table(path, columns=names)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableError(f"{path}: {reason}; columns needed: {', '.join(names)}") from error
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise TableError(f"{path}: no column {missing[0]}; columns needed: {', '.join(names)}")
    return {name: table.column(name).to_numpy() for name in names}


def read_table(path: Path, name: str) -> Table:
    """Read one table in the schema of KEYS, times in microseconds."""
    columns = read_columns(path, [*KEYS[name], "time_us"])
    return clean(path, name, columns, columns.pop("time_us").astype(np.float64) * 1e-6)


def clean(path: Path, name: str, columns: dict[str, Column], time_s: NDArray[np.float64]) -> Table:
    """Refuse rows that no fit may see; merge repeated keys by their median."""
    if not len(time_s):
        raise TableError(f"{path}: no rows")
    bad = ~np.isfinite(time_s) | (time_s <= 0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        more = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        raise TableError(
            f"{path}: row {first + 1}: time is {time_s[first] * 1e6:g} us, must be positive{more}"
        )
    codes = np.stack([np.unique(column, return_inverse=True)[1] for column in columns.values()])
    order = np.lexsort([time_s, *codes[::-1]])
    ranked_codes, ranked = codes[:, order], time_s[order]
    fresh = np.r_[True, (ranked_codes[:, 1:] != ranked_codes[:, :-1]).any(axis=0)]
    starts = np.flatnonzero(fresh)
    counts = np.diff(np.r_[starts, len(order)])
    median = (ranked[starts + (counts - 1) // 2] + ranked[starts + counts // 2]) / 2
    kept = order[starts]
    return Table(name, {key: v[kept] for key, v in columns.items()}, median, len(order) - len(kept))
