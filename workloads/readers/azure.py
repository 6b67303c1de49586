"""Azure LLM inference traces of 2023 and 2024: CSV with wall-clock stamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from workloads.errors import TraceFormatError
from workloads.readers.draft import Draft
from workloads.readers.source import Table, read_table
from workloads.trace import NS_PER_S, Int64, Trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}):([0-5][0-9])"
    r"(?:\.([0-9]+))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_YEARS = range(1970, 2201)  # of stamps; nanoseconds since 1970 fit in int64 until 2262
_EXPECTED = "a stamp as 2023-11-16 18:15:46.6805900 is expected, with or without an offset as +00:00"


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read an Azure CSV; the first arrival becomes 0, rows without generated tokens count as failed."""
    table = read_table(path, "an Azure trace", COLUMNS)
    output = table.whole("GeneratedTokens")
    extra = [name for name in table.header if name not in COLUMNS]
    return Draft(
        path=path,
        lines=table.lines,
        arrival_ns=_stamps_ns(table),
        input_tokens=table.whole("ContextTokens"),
        output_tokens=output,
        failed=output == 0,
        names=COLUMNS,
        wall_clock=True,
        warnings=[f"columns not used: {', '.join(extra)}"] if extra else [],
    ).finish(drop_failed=drop_failed)


def _stamps_ns(table: Table) -> Int64:
    """Return wall-clock text as nanoseconds since 1970, in whole numbers; digits below 1 ns are cut off."""
    minutes: dict[tuple[str, str, str | None], int] = {}
    out = np.empty(len(table.lines), dtype=np.int64)
    for row, cell in enumerate(table.columns["TIMESTAMP"]):
        match = _STAMP.fullmatch(cell)
        if match is None:
            table.fail(row, "TIMESTAMP", _EXPECTED)
        day, minute, second, fraction, zone = match.groups()
        key = (day, minute, zone)
        start = minutes.get(key)
        if start is None:
            start = minutes[key] = _epoch_s(table, row, key)
        digits = int(fraction[:9].ljust(9, "0")) if fraction else 0
        out[row] = (start + int(second)) * NS_PER_S + digits
    if len({zone is None for _, _, zone in minutes}) > 1:
        raise TraceFormatError(table.path, None, "some TIMESTAMPs have a UTC offset and some have none")
    return out


def _epoch_s(table: Table, row: int, key: tuple[str, str, str | None]) -> int:
    day, minute, zone = key
    if int(day[:4]) not in _YEARS:
        table.fail(row, "TIMESTAMP", f"a year from {_YEARS[0]} to {_YEARS[-1]} is expected")
    try:
        moment = datetime.fromisoformat(f"{day} {minute}:00{zone or '+00:00'}")
    except ValueError:
        table.fail(row, "TIMESTAMP", _EXPECTED)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
