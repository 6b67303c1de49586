"""AIPerf profile_export.jsonl: one line per request in order of completion, warm-up included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import TraceFormatError
from workloads.readers.draft import Draft, conversations
from workloads.readers.source import json_time, json_whole, read_json_lines, shown
from workloads.trace import Trace

Rows = Sequence[tuple[int, dict[str, Any]]]

_COUNTS = {  # the server's count first, the client's where the server reported none
    "input": ("usage_prompt_tokens", "input_sequence_length"),
    "output": ("usage_completion_tokens", "output_sequence_length"),
}


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read the profiling phase: arrivals are credit_issued_ns, warm-up lines are left out and counted."""
    rows, warmup = read_rows(path)
    return draft(path, rows, warmup).finish(drop_failed=drop_failed)


def read_rows(path: Path) -> tuple[Rows, int]:
    """Return the lines of the profiling phase, and how many were warm-up."""
    every = list(read_json_lines(path))
    for line, row in every:
        _check(path, line, row)
    rows = [(line, row) for line, row in every if row["metadata"].get("benchmark_phase") != "warmup"]
    warmup = len(every) - len(rows)
    if not rows:
        raise TraceFormatError(path, None, f"all {warmup} lines are warm-up; no workload is left")
    return rows, warmup


def draft(path: Path, rows: Rows, warmup: int) -> Draft:
    """Return the requests of these lines, in their order."""
    lines = [line for line, _ in rows]
    failed = np.array([_failed(row) for _, row in rows], dtype=np.bool_)
    output = json_whole(path, lines, "usage_completion_tokens", _counts(rows, "output"))
    warnings = [f"{warmup} warm-up requests are left out"] if warmup else []
    if not all("usage_completion_tokens" in row["metrics"] or _failed(row) for _, row in rows):
        warnings.append("token counts are the client's where the server reported none")
    starts = [row["metadata"].get("credit_issued_ns") for _, row in rows]
    return Draft(
        path=path,
        lines=lines,
        arrival_ns=json_time(path, lines, "metadata.credit_issued_ns", starts, 1),
        input_tokens=json_whole(path, lines, "usage_prompt_tokens", _counts(rows, "input")),
        output_tokens=output,
        failed=failed | (output == 0),
        names=("credit_issued_ns", "usage_prompt_tokens", "usage_completion_tokens"),
        session=conversations([_talk(row) for _, row in rows]),
        completion_order=True,
        wall_clock=True,
        warnings=warnings,
    )


def _check(path: Path, line: int, row: dict[str, Any]) -> None:
    for name in ("metadata", "metrics"):
        if not isinstance(row.get(name), dict):
            raise TraceFormatError(
                path,
                line,
                f"{name} is {shown(row.get(name))}; an object is expected, as AIPerf writes records",
            )


def _failed(row: dict[str, Any]) -> bool:
    meta = row["metadata"]
    return bool(row.get("error") or meta.get("was_cancelled") or meta.get("context_overflow_skip"))


def _counts(rows: Rows, side: str) -> list[Any]:
    """Token counts of one side; 0 for a failed request, None (an error by line) where none is recorded."""
    out: list[Any] = []
    for _, row in rows:
        cells = [row["metrics"].get(name) for name in _COUNTS[side]]
        found = [cell["value"] for cell in cells if isinstance(cell, dict) and "value" in cell]
        out.append(found[0] if found else 0 if _failed(row) else None)
    return out


def _talk(row: dict[str, Any]) -> tuple[str, bool]:
    """Return the conversation of a request, and whether this shows that it has several turns."""
    meta = row["metadata"]
    return str(meta.get("x_correlation_id", meta.get("conversation_id"))), bool(meta.get("turn_index"))
