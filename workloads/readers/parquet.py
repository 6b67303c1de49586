"""Our own Parquet: every column of a trace, exactly, with a schema version.

A trace whose requests hang together (`turns`) has version 2, for a reader that knew nothing of it would send them at
times that they do not have; others have version 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # costs 70 ms: this module is imported only when a Parquet file is
import pyarrow.parquet as pq

from workloads.errors import InputError, TraceFormatError
from workloads.readers.source import read_bytes
from workloads.trace import BlockHashes, Int64, Trace, Turns

SCHEMA_VERSION = 2
MAGIC = b"PAR1"

_META = b"servetwin.trace"
_COLUMNS = ("arrival_ns", "input_tokens", "output_tokens", "session", "tenant", "priority")
_TURN_COLUMNS = ("continues", "predecessor", "think_ns")


def write(trace: Trace, path: Path) -> None:
    """Write a trace; the same trace gives the same bytes."""
    columns: dict[str, Any] = {name: pa.array(getattr(trace, name)) for name in _COLUMNS}
    meta = {
        "schema_version": 1 if trace.turns is None else SCHEMA_VERSION,
        "tenant_names": trace.tenant_names,
        "has_arrivals": trace.has_arrivals,
        "failed": trace.failed,
        "source": trace.source,
        "warnings": trace.warnings,
        "block_tokens": None,
    }
    if trace.hashes is not None:
        meta["block_tokens"] = trace.hashes.block_tokens
        columns["block_hashes"] = pa.LargeListArray.from_arrays(trace.hashes.offsets, trace.hashes.ids)
    if trace.turns is not None:
        columns |= {name: pa.array(getattr(trace.turns, name)) for name in _TURN_COLUMNS}
    table = pa.table(columns).replace_schema_metadata({_META: json.dumps(meta)})
    pq.write_table(table, path, compression="zstd")


def read(path: Path, *, drop_failed: bool = False) -> Trace:  # noqa: ARG001 - holds no failed requests
    """Read a trace written by `write`; a newer schema or another Parquet file is refused."""
    if not read_bytes(path).startswith(MAGIC):
        raise TraceFormatError(path, None, "not a Parquet file")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceFormatError(path, None, f"damaged Parquet: {str(error).splitlines()[0]}") from None
    meta = _metadata(path, table)
    columns = {name: _int64(path, table, name) for name in _COLUMNS}
    turns = {name: _int64(path, table, name) for name in _TURN_COLUMNS if meta["schema_version"] > 1}
    try:
        return Trace.build(
            **columns,
            turns=Turns.build(**turns) if turns else None,
            tenant_names=meta["tenant_names"],
            hashes=_hashes(path, table, meta["block_tokens"]),
            has_arrivals=meta["has_arrivals"],
            failed=meta["failed"],
            source=meta["source"],
            warnings=meta["warnings"],
        )
    except InputError as error:
        raise TraceFormatError(path, None, str(error)) from None


def _metadata(path: Path, table: pa.Table) -> dict[str, Any]:
    raw = (table.schema.metadata or {}).get(_META)
    if raw is None:
        raise TraceFormatError(
            path, None, "a Parquet file, but not a trace written by servetwin trace convert"
        )
    meta: dict[str, Any] = json.loads(raw)
    found = meta.get("schema_version")
    if found not in range(1, SCHEMA_VERSION + 1):
        raise TraceFormatError(
            path, None, f"schema version {found}; this version reads up to {SCHEMA_VERSION}"
        )
    return meta


def _int64(path: Path, table: pa.Table, name: str) -> Int64:
    if name not in table.column_names:
        raise TraceFormatError(path, None, f"no column {name!r}")
    column = table.column(name)
    if column.type != pa.int64() or column.null_count:
        raise TraceFormatError(
            path, None, f"column {name!r} is {column.type} or has nulls; int64 is expected"
        )
    values: Int64 = column.to_numpy()
    return values


def _hashes(path: Path, table: pa.Table, block_tokens: int | None) -> BlockHashes | None:
    if block_tokens is None:
        return None
    if "block_hashes" not in table.column_names:
        raise TraceFormatError(path, None, "no column 'block_hashes', though block_tokens is set")
    column = table.column("block_hashes").combine_chunks()
    if column.null_count or column.flatten().null_count:
        raise TraceFormatError(path, None, "column 'block_hashes' has nulls")
    offsets = np.asarray(column.offsets, dtype=np.int64)
    return BlockHashes.build(block_tokens, np.diff(offsets), column.flatten().to_numpy())
