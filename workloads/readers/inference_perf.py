"""inference-perf per_request_lifecycle_metrics.json: monotonic seconds, by completion, stages in one list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import TraceFormatError
from workloads.readers.draft import Draft
from workloads.readers.source import json_time, json_whole, parse_json, read_text, shown
from workloads.trace import NS_PER_S, Trace


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read all records: arrivals are times of sending (intended ones are not recorded)."""
    return draft(path, read_records(path)).finish(drop_failed=drop_failed)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, in its order."""
    records = parse_json(path, None, read_text(path))
    if not isinstance(records, list):
        raise TraceFormatError(path, None, f"{shown(records)} where a list of records is expected")
    if not records:
        raise TraceFormatError(path, None, "an empty list; a trace has at least one request")
    for row, record in enumerate(records):
        if not isinstance(record, dict) or not isinstance(record.get("info"), dict):
            raise TraceFormatError(
                path, None, f"record {row} is {shown(record)}; an object with info is expected"
            )
    return records


def draft(path: Path, records: Sequence[dict[str, Any]]) -> Draft:
    """Return the requests of the records, in their order."""
    lines = [None] * len(records)
    failed = np.array([bool(record.get("error")) for record in records], dtype=np.bool_)
    pairs = [_counts(record) for record in records]
    output = json_whole(path, lines, "completion_tokens", [pair[1] for pair in pairs])
    recounted = sum(pair[2] for pair in pairs)
    note = f"{recounted} output lengths are the client's re-tokenisation: the server reported none"
    return Draft(
        path=path,
        lines=lines,
        arrival_ns=json_time(path, lines, "start_time", [r.get("start_time") for r in records], NS_PER_S),
        input_tokens=json_whole(path, lines, "prompt_tokens", [pair[0] for pair in pairs]),
        output_tokens=output,
        failed=failed | (output == 0),
        names=("start_time", "prompt_tokens", "completion_tokens"),
        completion_order=True,
        wall_clock=True,
        warnings=[note] if recounted else [],
    )


def _counts(record: dict[str, Any]) -> tuple[Any, Any, bool]:
    """Input and output tokens, and whether the output is the client's own count; zeros for a failure."""
    if record.get("error"):
        return 0, 0, False
    response = record["info"].get("response_metrics")
    response = response if isinstance(response, dict) else {}
    usage = response.get("server_usage")
    if isinstance(usage, dict):
        return usage.get("prompt_tokens"), usage.get("completion_tokens"), False
    request = record["info"].get("request_metrics")
    text = request.get("text") if isinstance(request, dict) else None
    return text.get("input_tokens") if isinstance(text, dict) else None, response.get("output_tokens"), True
