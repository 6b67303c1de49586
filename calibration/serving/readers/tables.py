"""CSV tables of runs: rows by column name, and errors that name the file and what is missing."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Collection
from pathlib import Path

from workloads.errors import InputError

Row = dict[str, str]


def read_rows(path: Path, columns: Collection[str] = ()) -> list[Row]:
    """Read a table, gzipped or not; raises InputError where it cannot be read or lacks one of `columns`."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: no column {', '.join(missing)}")
            return list(reader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text table ({error.reason})") from error


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
