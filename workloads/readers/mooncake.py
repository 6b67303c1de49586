"""Mooncake JSONL (512-token prefix blocks), also as AIPerf's `mooncake_trace` writes and reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.errors import TraceFormatError
from workloads.readers.blocks import read_hashes
from workloads.readers.draft import Draft
from workloads.readers.source import json_time, json_whole, read_json_lines, shown
from workloads.trace import Int64, Trace, session_codes

KEYS = ("timestamp", "input_length", "output_length")
BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024)  # in order of trust, where a file fits several

_TEXT = ("text", "text_input", "texts", "messages", "payload")


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read Mooncake JSONL: timestamps in ms, one block id per 512 tokens (or as the lengths imply)."""
    rows = list(read_json_lines(path))
    lines = [line for line, _ in rows]
    for line, row in rows:
        _refuse_text(path, line, row)
    output = json_whole(path, lines, "output_length", [row.get("output_length") for _, row in rows])
    inputs = json_whole(path, lines, "input_length", [row.get("input_length") for _, row in rows])
    hashes, warnings = read_hashes(path, rows, inputs, BLOCK_TOKENS)
    return Draft(
        path=path,
        lines=lines,
        arrival_ns=_arrivals(path, rows),
        input_tokens=inputs,
        output_tokens=output,
        failed=output == 0,
        names=KEYS,
        session=_sessions(path, rows),
        hashes=hashes,
        warnings=warnings,
    ).finish(drop_failed=drop_failed)


def _refuse_text(path: Path, line: int, row: dict[str, Any]) -> None:
    if "input_length" in row:
        return
    text = next((key for key in _TEXT if key in row), None)
    if text is not None:
        raise TraceFormatError(
            path, line, f"{text!r} instead of input_length: lengths need its tokenizer; give token counts"
        )
    raise TraceFormatError(
        path, line, "no input_length; a Mooncake row has timestamp, input_length, output_length"
    )


def _arrivals(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> Int64 | None:
    """Timestamps, or None where no row has one (lengths only)."""
    for line, row in rows:
        if row.get("delay") is not None and "timestamp" not in row:
            raise TraceFormatError(
                path, line, "'delay' instead of timestamp: it counts from an answer; give timestamps in ms"
            )
    if all("timestamp" not in row for _, row in rows):
        return None
    lines = [line for line, _ in rows]
    return json_time(path, lines, "timestamp", [row.get("timestamp") for _, row in rows], 1_000_000)


def _sessions(path: Path, rows: Sequence[tuple[int, dict[str, Any]]]) -> Int64 | None:
    names = [row.get("session_id") for _, row in rows]
    if all(name is None for name in names):
        return None
    for (line, _), name in zip(rows, names, strict=True):
        if type(name) not in (str, int, type(None)):
            raise TraceFormatError(path, line, f"session_id is {shown(name)}; text or a number is expected")
    return session_codes(names)
