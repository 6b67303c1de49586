"""Files as rows: what is wrong with one is said by file and line."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from workloads.errors import TraceFormatError
from workloads.trace import NS_PER_S, Int64

_LARGEST = 2**62  # leaves room for sums in int64
_DIGITS = 19  # a count of so many is beyond it
_SHOWN = 40  # characters of a bad cell that a message repeats


def shown(value: object) -> str:
    """Return a value as a message shows it: short, on one line."""
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def read_bytes(path: Path) -> bytes:
    """Return the file's content; says what is wrong where there is none."""
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise TraceFormatError(path, None, "is a directory; give the trace file itself") from None
    except FileNotFoundError:
        raise TraceFormatError(path, None, "no such file") from None
    except OSError as error:
        raise TraceFormatError(path, None, f"cannot be read: {error.strerror or error}") from None
    if not data.strip():
        raise TraceFormatError(path, None, "the file is empty; a trace has at least one request")
    return data


def read_text(path: Path) -> str:
    """Return the file as text, without a byte-order mark."""
    data = read_bytes(path)
    if data.startswith(b"\x1f\x8b"):
        raise TraceFormatError(path, None, "is compressed with gzip; unpack it first")
    at = data.find(b"\0")
    if at >= 0:
        raise TraceFormatError(path, data.count(b"\n", 0, at) + 1, "binary data; a trace is UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceFormatError(path, line, "not UTF-8 text; a trace is UTF-8 text") from None


@dataclass(frozen=True)
class Table:
    """A CSV file as columns of text; `lines` holds the line of each row."""

    path: Path
    header: tuple[str, ...]
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]

    def fail(self, row: int, name: str, expected: str) -> NoReturn:
        """Reject the cell of `name` in `row`, saying what would be right."""
        cell = shown(self.columns[name][row])
        raise TraceFormatError(self.path, self.lines[row], f"{name} is {cell}; {expected}")

    def whole(self, name: str) -> Int64:
        """Return a column of non-negative whole numbers."""
        cells = self.columns[name]
        text = "".join(cells)
        if text.isascii() and all(map(str.isdigit, cells)) and max(map(len, cells)) < _DIGITS:
            return np.array(list(map(int, cells)), dtype=np.int64)
        for row, cell in enumerate(cells):
            if not (cell.isascii() and cell.isdigit() and len(cell) < _DIGITS):
                self.fail(row, name, "a whole number of tokens is expected, as 128")
        raise AssertionError(name)

    def seconds_ns(self, name: str) -> Int64:
        """Return a column of seconds, rounded once to nanoseconds."""
        values = np.empty(len(self.lines))
        for row, cell in enumerate(self.columns[name]):
            try:
                values[row] = float(cell)
            except ValueError:
                values[row] = math.nan
            if not (0 <= values[row] < _LARGEST / NS_PER_S) or "_" in cell:
                self.fail(row, name, "seconds since the start are expected, as 12.5")
        return np.rint(values * NS_PER_S).astype(np.int64)


def read_table(path: Path, kind: str, required: Sequence[str]) -> Table:
    """Read a CSV file whose header names at least the `required` columns; blank lines are passed over."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), skipinitialspace=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = tuple(name.strip() for name in next(reader))
        _check_header(path, kind, header, required)
        width = len(header)
        for row in reader:
            if len(row) != width:
                if not row:
                    continue
                message = f"{len(row)} fields where the header has {width}"
                raise TraceFormatError(path, reader.line_num, message)
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise TraceFormatError(path, reader.line_num, f"not CSV: {error}") from None
    if not rows:
        raise TraceFormatError(path, None, "a header without rows; a trace has at least one request")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return Table(path, header, columns, lines)


def _check_header(path: Path, kind: str, header: tuple[str, ...], required: Sequence[str]) -> None:
    for name in required:
        if header.count(name) != 1:
            wrong = "no" if name not in header else "more than one"
            found = " ".join(", ".join(header).split())[:120]
            raise TraceFormatError(
                path,
                1,
                f"{wrong} column {name!r}; {kind} needs {', '.join(required)} and the header is {found}",
            )


def read_json_lines(path: Path, text: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of a file with one JSON object a line; blank lines are passed over."""
    for line, row in enumerate((text or read_text(path)).split("\n"), 1):
        if not row.strip():
            continue
        yield line, parse_object(path, line, row)


def parse_object(path: Path, line: int | None, text: str) -> dict[str, Any]:
    """Return the JSON object in `text`."""
    value = parse_json(path, line, text)
    if not isinstance(value, dict):
        raise TraceFormatError(path, line, f"{shown(value)} where one JSON object is expected")
    return value


def parse_json(path: Path, line: int | None, text: str) -> Any:  # noqa: ANN401 - JSON has no type
    """Return the JSON value in `text`; a truncated one is an error at its line."""
    try:
        return json.loads(text)
    except RecursionError:
        raise TraceFormatError(path, line, "JSON nested too deeply for a trace") from None
    except json.JSONDecodeError as error:
        where = line if line is not None else error.lineno
        cut = " (cut off?)" if error.pos >= len(text.rstrip()) or "Unterminated" in error.msg else ""
        message = f"not valid JSON{cut}: {error.msg}, column {error.colno}"
        raise TraceFormatError(path, where, message) from None
    except ValueError as error:  # a number of thousands of digits
        raise TraceFormatError(path, line, f"not usable JSON: {error}") from None


def json_whole(path: Path, lines: Sequence[int | None], name: str, values: Sequence[Any]) -> Int64:
    """Return JSON values as non-negative whole numbers; 12.0, true and null are rejected by line."""
    for line, value in zip(lines, values, strict=True):
        if type(value) is not int or not 0 <= value < _LARGEST:
            message = f"{name} is {_json(value)}; a whole number of tokens is expected, as 128"
            raise TraceFormatError(path, line, message)
    return np.array(values, dtype=np.int64)


def json_time(
    path: Path, lines: Sequence[int | None], name: str, values: Sequence[Any], unit_ns: int
) -> Int64:
    """Return JSON numbers in units of `unit_ns` as nanoseconds; whole numbers stay exact."""
    unit = {NS_PER_S: "seconds", 1_000_000: "milliseconds", 1: "nanoseconds"}[unit_ns]
    out: list[int] = []
    for line, value in zip(lines, values, strict=True):
        good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < _LARGEST / unit_ns
        if not good:
            raise TraceFormatError(
                path, line, f"{name} is {_json(value)}; non-negative {unit} are expected, as 1500"
            )
        out.append(value * unit_ns if type(value) is int else round(value * unit_ns))
    return np.array(out, dtype=np.int64)


def _json(value: object) -> str:
    if value is None:
        return "missing"
    return shown(value) if not isinstance(value, bool) else str(value).lower()
