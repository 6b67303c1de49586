"""CSV tables of runs: rows by column name, their numbers, and errors that name the place and what is expected."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from workloads.errors import InputError

Row = dict[str, str]

_MOST: Final = 1 << 53  # whole numbers that a float holds too


def read_rows(path: Path, columns: Collection[str] = ()) -> list[Row]:
    """Read a table, gzipped or not; raises InputError where it cannot be read or lacks one of `columns`."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: no column {', '.join(missing)}")
            rows = list(reader)
            short = next((i for i, row in enumerate(rows, 1) if None in row or None in row.values()), None)
            if short is not None:
                raise InputError(f"{path}: row {short} has not one field for each column")
            return rows
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text table ({error.reason})") from error
    except (csv.Error, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a table ({error})") from error


def whole(row: Row, column: str, where: str, least: int = 1) -> int:
    """Return a whole number of a row, `where` it is; raises InputError where it is none, or below `least`."""
    text = row.get(column)
    try:
        value = int(text or "")
    except ValueError:
        value = least - 1
    if not least <= value < _MOST:
        raise InputError(f"{where}: {column} is {text!r}; a whole number, {least} or more, is expected")
    return value


def above_zero(row: Row, column: str, where: str) -> float:
    """Return a number of a row, `where` it is; raises InputError where it is none, not finite, or not above 0."""
    return above_zero_in(row.get(column), f"{where}: {column}")


def above_zero_in(text: str | None, where: str) -> float:
    """Return the number that a text holds; as `above_zero`."""
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{where} is {text!r}; a number above 0 is expected")
    return value


def has_columns(path: Path, columns: Collection[str]) -> bool:
    """Tell whether a file is a CSV table with these columns; never raises."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", newline="") as file:
            names = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError):
        return False
    return set(columns) <= set(names)
