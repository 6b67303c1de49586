"""BurstGPT CSV: requests to ChatGPT and GPT-4 services, failed ones included."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.readers.draft import Draft
from workloads.readers.source import Table, read_table
from workloads.trace import Int64, Trace, session_codes

NAMES = ("Timestamp", "Request tokens", "Response tokens")


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read a BurstGPT CSV (timestamps in s); a row without response tokens is a failed request.

    "Elapsed time" is the whole duration of a request, not its time to first token, and is not used.
    """
    table = read_table(path, "a BurstGPT trace", NAMES)
    inputs, output = table.whole(NAMES[1]), table.whole(NAMES[2])
    _check_totals(table, inputs + output)
    return Draft(
        path=path,
        lines=table.lines,
        arrival_ns=table.seconds_ns(NAMES[0]),
        input_tokens=inputs,
        output_tokens=output,
        failed=output == 0,
        names=NAMES,
        session=_sessions(table),
    ).finish(drop_failed=drop_failed)


def _sessions(table: Table) -> Int64 | None:
    name = next((name for name in table.header if name.lower() == "session id"), None)
    if name is None:
        return None
    return session_codes([cell if cell and cell.lower() != "nan" else None for cell in table.columns[name]])


def _check_totals(table: Table, sums: Int64) -> None:
    name = "Total tokens"
    if name not in table.header:
        return
    wrong = np.flatnonzero(table.whole(name) != sums)
    if wrong.size:
        row = int(wrong[0])
        others = f", in {wrong.size} rows in all" if wrong.size > 1 else ""
        table.fail(row, name, f"request + response are {sums[row]}; which of them is wrong{others}?")
