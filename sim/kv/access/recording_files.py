"""Files of recorded page accesses.

Parquet (`.parquet`): columns `step` (decode steps from 0, each with rows), `layer` (from 0), `page` (block of tokens
from the start of the sequence, from 0), `weight` (share of the layer's attention mass, 0 to 1), one row a page; and
in the metadata of the schema, under `servetwin.kv_access`, a JSON object:

    version         1
    block_size      tokens of a page
    context_tokens  that the first step attends to, its own token included; each later step has one more
    num_layers      of the model, times `heads`
    heads           optional, by default 1: KV heads recorded apart; head h of layer i is layer i * heads + h
    source          optional: whose attention this is, and how its pages were chosen, in words
    random_weights  optional: whether nobody trained the model

JSON lines (`.jsonl`): this object in the first line, then one object a row with the names of the columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # costs 70 ms: this module is imported only when a recording is
import pyarrow.parquet as pq

from sim.kv.access.recording import Header, Recording
from workloads.errors import InputError, TraceFormatError

VERSION: Final = 1
_KEY: Final = b"servetwin.kv_access"
_COLUMNS: Final = {"step": pa.int32(), "layer": pa.int32(), "page": pa.int32(), "weight": pa.float64()}
_LIMITS: Final = {"block_size": 1 << 20, "context_tokens": 1 << 40, "num_layers": 1 << 16, "heads": 1 << 16}
_OPTIONAL: Final = {"heads": 1}


def write_recording(path: Path, recording: Recording, suffix: str | None = None) -> None:
    """Write a recording; the suffix, by default that of the path, says in which format."""
    header = {"version": VERSION, **asdict(recording.header)}
    columns = {name: getattr(recording, name) for name in _COLUMNS}
    if _is_parquet(path if suffix is None else path.with_suffix(suffix)):
        schema = pa.schema(list(_COLUMNS.items()), metadata={_KEY: json.dumps(header).encode()})
        pq.write_table(pa.table(columns, schema=schema), path)
        return
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        file.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def read_recording(path: Path) -> Recording:
    """Read and check a recording; raises InputError or TraceFormatError, with the line where there is one."""
    parquet = _is_parquet(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; a recording of KV accesses is a .parquet or .jsonl file")
    header, columns = _from_parquet(path) if parquet else _from_lines(path)
    _check_rows(path, header, columns, first_line=None if parquet else 2)
    order = np.lexsort((columns["page"], columns["layer"], columns["step"]))
    rows = {name: column[order] for name, column in columns.items()}
    same = np.all([rows[name][1:] == rows[name][:-1] for name in ("step", "layer", "page")], axis=0)
    if same.any():
        at = int(same.argmax())
        where = ", ".join(f"{name} {rows[name][at]}" for name in ("step", "layer", "page"))
        raise TraceFormatError(path, None, f"{where} stands twice; give one row a page")
    present = np.unique(rows["step"])
    if present[-1] != present.size - 1:
        missing = int(np.flatnonzero(present != np.arange(present.size))[0])
        raise TraceFormatError(
            path, None, f"step {missing} has no rows; number the steps from 0 without gaps"
        )
    return Recording(header, rows["step"], rows["layer"], rows["page"], rows["weight"].astype(np.float64))


def check_suffix(path: Path) -> None:
    """Raise InputError where a path's suffix names no format of recordings."""
    _is_parquet(path)


def _is_parquet(path: Path) -> bool:
    if path.suffix not in (".parquet", ".jsonl"):
        raise InputError(f"{path}: a recording of KV accesses is a .parquet or .jsonl file")
    return path.suffix == ".parquet"


def _from_parquet(path: Path) -> tuple[Header, dict[str, Any]]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceFormatError(path, None, f"not a Parquet file: {str(error).splitlines()[0]}") from error
    text = (table.schema.metadata or {}).get(_KEY)
    if text is None:
        raise TraceFormatError(path, None, f"its schema has no metadata {_KEY.decode()!r}; not a recording")
    header = _header(path, None, text)
    columns = {}
    for name, kind in _COLUMNS.items():
        if name not in table.column_names:
            raise TraceFormatError(
                path, None, f"column {name!r} is missing; a recording has {', '.join(_COLUMNS)}"
            )
        try:
            column = table.column(name).cast(kind if name == "weight" else pa.int64())
        except pa.ArrowException as error:
            raise TraceFormatError(
                path, None, f"column {name!r} holds no numbers that fit: {error}"
            ) from error
        if column.null_count:
            raise TraceFormatError(path, None, f"column {name!r} has {column.null_count} empty values")
        columns[name] = column.to_numpy()
    return header, columns


def _from_lines(path: Path) -> tuple[Header, dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise TraceFormatError(path, None, "not a text file in UTF-8") from error
    if not lines:
        raise TraceFormatError(
            path, None, "empty; the first line is an object with block_size, context_tokens, num_layers"
        )
    rows = [_row(path, number, line) for number, line in enumerate(lines[1:], start=2)]
    columns = {
        name: np.array([row[i] for row in rows], dtype=np.float64 if name == "weight" else np.int64)
        for i, name in enumerate(_COLUMNS)
    }
    return _header(path, 1, lines[0]), columns


def _row(path: Path, number: int, line: str) -> tuple[int, int, int, float]:
    row = _object(path, number, line)
    for name in _COLUMNS:
        value = row.get(name)
        kinds = (int, float) if name == "weight" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or abs(value) >= 1 << 31:
            what = "a number" if name == "weight" else "a whole number"
            raise TraceFormatError(path, number, f"{name} is {value!r}; give {what}")
    return row["step"], row["layer"], row["page"], row["weight"]


def _object(path: Path, number: int | None, text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TraceFormatError(path, number, f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise TraceFormatError(path, number, "not a JSON object")
    return found


def _header(path: Path, number: int | None, text: str | bytes) -> Header:
    found = _object(path, number, text)
    if found.get("version") != VERSION:
        raise TraceFormatError(
            path, number, f"version is {found.get('version')!r}; this reads recordings of version {VERSION}"
        )
    found = {**_OPTIONAL, **found}
    for name, most in _LIMITS.items():
        value = found.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise TraceFormatError(path, number, f"{name} is {value!r}; give a whole number from 1 to {most}")
    if found["num_layers"] % found["heads"]:
        raise TraceFormatError(
            path, number, f"heads is {found['heads']}; it must divide num_layers, {found['num_layers']}"
        )
    source, random_weights = found.get("source", ""), found.get("random_weights")
    if not isinstance(source, str):
        raise TraceFormatError(path, number, f"source is {source!r}; give words")
    if not isinstance(random_weights, bool | None):
        raise TraceFormatError(
            path, number, f"random_weights is {random_weights!r}; give true, false or null"
        )
    return Header(**{name: found[name] for name in _LIMITS}, source=source, random_weights=random_weights)


def _check_rows(path: Path, header: Header, columns: dict[str, Any], first_line: int | None) -> None:
    step, layer, page, weight = (columns[name] for name in _COLUMNS)
    if not step.size:
        raise TraceFormatError(path, None, "no rows; a recording has at least one step")
    last_page = -(-(header.context_tokens + step) // header.block_size) - 1
    wrong: Iterable[tuple[str, Any, Any, str]] = (
        ("step", step, step < 0, "at least 0"),
        ("layer", layer, (layer < 0) | (layer >= header.num_layers), f"0 to {header.num_layers - 1}"),
        ("page", page, (page < 0) | (page > last_page), "0 to the step's last page"),
        ("weight", weight, ~((weight >= 0) & (weight <= 1)), "0 to 1"),
    )
    for name, column, bad, right in wrong:
        if bad.any():
            at = int(bad.argmax())
            line = None if first_line is None else first_line + at
            raise TraceFormatError(path, line, f"{name} is {column[at]} in row {at}; it must be {right}")
