"""guidellm benchmarks.json: intended starts (wall clock, s) and the server's token counts, by completion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.errors import TraceFormatError
from workloads.readers.draft import Draft, conversations
from workloads.readers.source import json_time, json_whole, parse_object, read_text, shown
from workloads.trace import NS_PER_S, Trace


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read the only benchmark of a file; errored and incomplete requests count as failed."""
    benchmarks = read_benchmarks(path)
    if len(benchmarks) > 1:
        raise TraceFormatError(
            path,
            None,
            f"{len(benchmarks)} benchmarks (one a rate) in one file; run guidellm with one rate for a trace",
        )
    return draft(path, benchmarks[0], read_records(path, benchmarks[0])).finish(drop_failed=drop_failed)


@dataclass(frozen=True)
class Records:
    """Requests of a benchmark, in their order in the file; those that went wrong have no results."""

    good: list[dict[str, Any]]
    bad: list[dict[str, Any]]


def read_records(path: Path, benchmark: dict[str, Any]) -> Records:
    """Return the requests of a benchmark."""
    groups = benchmark.get("requests")
    if not isinstance(groups, dict) or not isinstance(groups.get("successful"), list):
        raise TraceFormatError(
            path, None, "no benchmarks[0].requests.successful; keep each request in the output"
        )
    good = _records(path, groups, "successful")
    bad = _records(path, groups, "errored") + _records(path, groups, "incomplete")
    if not good + bad:
        raise TraceFormatError(path, None, "no requests; a trace has at least one")
    return Records(good, bad)


def draft(path: Path, benchmark: dict[str, Any], records: Records) -> Draft:
    """Return the requests of a benchmark: those that succeeded, then the others."""
    good, bad = records.good, records.bad
    lines = [None] * (len(good) + len(bad))
    zeros = [0] * len(bad)
    starts = [_start(record) for record in good + bad]
    inputs = [record.get("prompt_tokens") for record in good] + zeros
    outputs = [record.get("output_tokens") for record in good] + zeros
    output = json_whole(path, lines, "output_tokens", outputs)
    return Draft(
        path=path,
        lines=lines,
        arrival_ns=json_time(path, lines, "info.timings.targeted_start", starts, NS_PER_S),
        input_tokens=json_whole(path, lines, "prompt_tokens", inputs),
        output_tokens=output,
        failed=(output == 0) | (np.arange(len(lines)) >= len(good)),
        names=("targeted_start", "prompt_tokens", "output_tokens"),
        session=conversations([_talk(record) for record in good + bad]),
        completion_order=True,
        wall_clock=True,
        warnings=_warnings(benchmark),
    )


def read_benchmarks(path: Path) -> list[dict[str, Any]]:
    """Return the benchmarks of a file, one a rate."""
    found = parse_object(path, None, read_text(path)).get("benchmarks")
    if not isinstance(found, list) or not found:
        raise TraceFormatError(path, None, "no benchmarks; a guidellm file has a list of them")
    for at, one in enumerate(found):
        if not isinstance(one, dict):
            raise TraceFormatError(path, None, f"benchmarks[{at}] is {shown(one)}; an object is expected")
    return found


def _records(path: Path, groups: dict[str, Any], name: str) -> list[dict[str, Any]]:
    records = groups.get(name) or []
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise TraceFormatError(path, None, f"requests.{name} is not a list of requests")
    return records


def _timings(record: dict[str, Any]) -> dict[str, Any]:
    info = record.get("info")
    timings = info.get("timings") if isinstance(info, dict) else None
    return timings if isinstance(timings, dict) else {}


def _start(record: dict[str, Any]) -> Any:  # noqa: ANN401 - a number, if the file is right
    """Return the intended start; the real one where none was intended."""
    target = _timings(record).get("targeted_start")
    return record.get("request_start_time", record.get("start_time")) if target is None else target


def _talk(record: dict[str, Any]) -> tuple[str, bool]:
    """Return the conversation of a request, and whether this shows that it has several turns."""
    info = record.get("info")
    info = info if isinstance(info, dict) else {}
    return str(info.get("conversation_id")), bool(info.get("turn_index") or info.get("preceding_nodes"))


def strategy(benchmark: dict[str, Any]) -> dict[str, Any]:
    """Return how the client sent: its kind (`type_`) and settings; empty where the file does not say."""
    config = benchmark.get("config")
    found = config.get("strategy") if isinstance(config, dict) else None
    if not isinstance(found, dict):
        return {}
    return {"type_": found.get("kind")} | found


def _warnings(benchmark: dict[str, Any]) -> list[str]:
    kind = strategy(benchmark).get("type_")
    if kind in ("concurrent", "throughput", "synchronous"):
        return [f"a closed loop ({kind}): starts follow the server's answers; use max_concurrency instead"]
    return []
