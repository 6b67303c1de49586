"""Allocation traces: what a program asked of an allocator of memory, and gave back.

A CSV file with a header line, or JSON lines (`.jsonl`) with the same names, one event a row in order of time:

    time_s    seconds from any start, not falling
    op        alloc or free
    id        names the allocation; free again once it has been freed
    bytes     of an alloc, at least 1; of a free it may be left out
    address   where the program's own allocator put it, in bytes; of all allocs or of none

An id that is in use is not allocated again, and only what is in use is freed; what is never freed stays to the end.
Memory hooks of a device library write such a file in a few lines: one row when they allocate, one when they free.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.errors import InputError, TraceFormatError

Int64 = NDArray[np.int64]

_FIELDS: Final = ("time_s", "op", "id", "bytes", "address")
_MOST_SECONDS: Final = 1e9
_MOST_BYTES: Final = 1 << 50


class Event(NamedTuple):
    """One row; `item` counts the allocations from 0."""

    time_ns: int
    is_alloc: bool
    item: int


@dataclass(frozen=True, eq=False)
class AllocationTrace:
    """Events in order of time, and the size and place of each allocation.

    time_ns, is_alloc, item   per event; `item` is the allocation that begins or ends
    num_bytes                 per allocation
    address                   per allocation; None where the trace names no places
    """

    time_ns: Int64
    is_alloc: NDArray[np.bool_]
    item: Int64
    num_bytes: Int64
    address: Int64 | None = None

    def __len__(self) -> int:
        return int(self.time_ns.size)

    def __iter__(self) -> Iterator[Event]:
        rows = zip(self.time_ns.tolist(), self.is_alloc.tolist(), self.item.tolist(), strict=True)
        return (Event(*row) for row in rows)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were in use at once."""
        change = np.where(self.is_alloc, 1, -1) * self.num_bytes[self.item]
        return int(np.cumsum(change).max(initial=0))


def read_allocations(path: Path) -> AllocationTrace:
    """Read and check a trace; raises InputError, or TraceFormatError with the line of the first bad row."""
    if path.suffix not in (".csv", ".jsonl"):
        raise InputError(f"{path}: an allocation trace is a .csv or .jsonl file")
    if not path.is_file():
        raise InputError(f"{path}: no such file; an allocation trace is a .csv or .jsonl file")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _csv_rows(path, file) if path.suffix == ".csv" else _json_rows(path, file)
            return _checked(path, rows)
    except UnicodeDecodeError as error:
        raise TraceFormatError(path, None, f"not UTF-8 ({error.reason} at byte {error.start})") from None


def write_allocations(path: Path, trace: AllocationTrace) -> None:
    """Write a trace that `read_allocations` reads; the suffix of the path says in which format."""
    names = _FIELDS if trace.address is not None else _FIELDS[:-1]
    rows = []
    for time_ns, is_alloc, item in trace:
        row: dict[str, Any] = {
            "time_s": time_ns / 1e9,
            "op": "alloc" if is_alloc else "free",
            "id": str(item),
        }
        if is_alloc:
            row["bytes"] = int(trace.num_bytes[item])
            if trace.address is not None:
                row["address"] = int(trace.address[item])
        rows.append(row)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


Row = tuple[int, Mapping[str, Any]]
"""A line's number from 1, and what it says by name; empty values left out."""


def _csv_rows(path: Path, file: Iterable[str]) -> Iterator[Row]:
    reader = csv.reader(file, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_names(path, 1, header, needed=_FIELDS[:4])
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise TraceFormatError(
                    path, reader.line_num, f"{len(row)} values for the {len(header)} columns of the header"
                )
            yield (
                reader.line_num,
                {k: v.strip() for k, v in zip(header, row, strict=True) if v.strip()},
            )
    except csv.Error as error:
        raise TraceFormatError(path, reader.line_num, f"not CSV ({error})") from None


def _json_rows(path: Path, file: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise TraceFormatError(path, number, "not JSON; write one object a line") from None
        if not isinstance(row, dict):
            raise TraceFormatError(path, number, "not an object; write one object a line")
        _check_names(path, number, list(row), needed=_FIELDS[:3])
        yield number, {key: value for key, value in row.items() if value is not None}


def _check_names(path: Path, line: int, names: list[str], needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in names]
    unknown = [name for name in names if name not in _FIELDS]
    if missing or unknown or len(set(names)) < len(names):
        wrong = (
            f"{missing[0]} is missing" if missing else f"{(unknown or names)[0]!r} is unknown or stands twice"
        )
        raise TraceFormatError(path, line, f"{wrong}; the columns are {', '.join(_FIELDS)}")


def _checked(path: Path, rows: Iterable[Row]) -> AllocationTrace:
    events: list[Event] = []
    sizes: list[int] = []
    places: list[int] = []
    in_use: dict[str, int] = {}
    for line, row in rows:
        time_ns = _time(path, line, row)
        if events and time_ns < events[-1].time_ns:
            raise TraceFormatError(
                path, line, f"time_s: {row['time_s']} is before the row above; sort by time"
            )
        op, name = row.get("op"), _name(path, line, row)
        if op == "alloc":
            if name in in_use:
                raise TraceFormatError(
                    path, line, f"id: {name} is in use; free it before it is allocated again"
                )
            in_use[name] = len(sizes)
            sizes.append(_whole(path, line, row, "bytes", 1))
            if "address" in row:
                places.append(_whole(path, line, row, "address", 0))
            if len(places) not in (0, len(sizes)):
                raise TraceFormatError(path, line, "address: give it for every alloc or for none")
            events.append(Event(time_ns, True, in_use[name]))
        elif op == "free":
            events.append(Event(time_ns, False, _freed(path, line, row, name, in_use, sizes)))
        else:
            raise TraceFormatError(path, line, f"op: {op!r} is neither alloc nor free")
    if not events:
        raise TraceFormatError(path, None, "no events; give one row for each alloc and free")
    times, allocs, items = (np.array(column) for column in zip(*events, strict=True))
    address = np.array(places, dtype=np.int64) if places else None
    return AllocationTrace(times, allocs, items, np.array(sizes, dtype=np.int64), address)


def _freed(
    path: Path, line: int, row: Mapping[str, Any], name: str, in_use: dict[str, int], sizes: list[int]
) -> int:
    item = in_use.pop(name, None)
    if item is None:
        raise TraceFormatError(path, line, f"id: {name} is not in use; free only what was allocated before")
    if "bytes" in row and _whole(path, line, row, "bytes", 1) != sizes[item]:
        raise TraceFormatError(
            path, line, f"bytes: {row['bytes']}, but {name} was allocated with {sizes[item]}"
        )
    return item


def _time(path: Path, line: int, row: Mapping[str, Any]) -> int:
    value = row.get("time_s")
    try:
        seconds = float(value) if not isinstance(value, bool) and value is not None else -1.0
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds <= _MOST_SECONDS:
        raise TraceFormatError(path, line, f"time_s: {value!r} is not a time in seconds from 0 to 1e9")
    return round(seconds * 1e9)


def _name(path: Path, line: int, row: Mapping[str, Any]) -> str:
    value = row.get("id")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TraceFormatError(path, line, f"id: {value!r} names nothing; give a number or a text")
    return str(value)


def _whole(path: Path, line: int, row: Mapping[str, Any], field: str, least: int) -> int:
    value = row.get(field)
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else least - 1
    except ValueError:
        number = least - 1
    if not least <= number <= (_MOST_BYTES if field == "bytes" else 2**63 - 1 - _MOST_BYTES):
        raise TraceFormatError(path, line, f"{field}: {value!r} is not a whole number of bytes from {least}")
    return number
