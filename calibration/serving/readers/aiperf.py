"""Results of AIPerf (profile_export.jsonl): one measured run, of the profiling phase.

Metadata times are unix nanoseconds, metrics milliseconds. What this client calls `inter_token_latency` is one mean a
request, our TPOT; its `inter_chunk_latency` are the gaps between chunks, our ITL where each chunk is one token. How it
sent, and its own summary, stand in `profile_export_aiperf.json` beside the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.predict import metrics_of
from calibration.serving.readers.client_judgement import measured_run
from calibration.serving.readers.client_run import (
    INFERRED,
    Claim,
    ClientRun,
    Float,
    constant_in_flight,
    requests_seen,
)
from calibration.serving.readers.json_paths import at, count_at, number_at
from calibration.serving.readers.prompts import prompt_text, with_prefixes
from calibration.serving.readers.scrapes import aiperf_figures_beside, figures_beside
from sim.engine.clock import NS_PER_MS
from workloads.errors import InputError, TraceFormatError
from workloads.readers import aiperf, detect_format
from workloads.readers.source import json_time, parse_object, read_text, shown
from workloads.trace import NS_PER_S, Int64

CLIENT: Final = "aiperf"
INPUTS: Final = "inputs.json"
_STATISTICS: Final = {"mean": "avg", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_LATENCIES: Final = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "e2el": "request_latency",
}

Rows = Sequence[tuple[int, dict[str, Any]]]


def recognises(path: Path) -> bool:
    """Tell whether the file is one of these results; never raises."""
    try:
        return path.is_file() and detect_format(path) == "aiperf"
    except InputError:
        return False


def read(path: Path, scenario_raw: Mapping[str, Any]) -> list[MeasuredRun]:
    """Read the profiling phase of a file; `scenario_raw` is what it ran on."""
    every, warmup = aiperf.read_rows(path)
    draft = aiperf.draft(path, every, warmup)
    trace, kept = draft.finish(drop_failed=True), draft.rows()
    rows = [every[row] for row in kept.tolist()]
    lines = [line for line, _ in rows]
    started = [row["metadata"].get("request_start_ns") for _, row in rows]
    sent = json_time(path, lines, "metadata.request_start_ns", started, 1)
    first = sent + _metric_ns(path, rows, "time_to_first_token")
    last = sent + _metric_ns(path, rows, "request_latency")
    summary = _document(path.with_name(f"{path.stem}_aiperf.json"))
    concurrency, said = _loop(summary, sent, last)
    issued = json_time(
        path, lines, "metadata.credit_issued_ns", [row["metadata"]["credit_issued_ns"] for _, row in rows], 1
    )
    seen = requests_seen(trace, sent, first, last)
    run = ClientRun(
        path=path,
        client=CLIENT,
        trace=with_prefixes(trace, _prompts(path, rows)),
        requests=seen,
        late_s=np.zeros(0) if concurrency else (sent - issued) / NS_PER_S,
        concurrency=concurrency,
        gaps_s=_gaps_s(path, rows),
        claims=_claims(summary, metrics_of(seen)),
        server=aiperf_figures_beside(path) or figures_beside(path),
        caveats=[*trace.warnings, *said],
    )
    return [measured_run(run, scenario_raw)]


def _metric_ns(path: Path, rows: Rows, name: str) -> Int64:
    """Return a metric of each request, which carries its unit [ns]."""
    found = [row["metrics"].get(name) for _, row in rows]
    for (line, _), metric in zip(rows, found, strict=True):
        if not isinstance(metric, dict) or metric.get("unit") != "ms":
            raise TraceFormatError(
                path,
                line,
                f"{name} is {shown(metric)}; a value in ms is expected, as AIPerf keeps with --streaming",
            )
    return json_time(
        path, [line for line, _ in rows], name, [metric.get("value") for metric in found], round(NS_PER_MS)
    )


def _gaps_s(path: Path, rows: Rows) -> Float:
    """Return the gaps between chunks, where they were kept."""
    gaps: list[float] = []
    for line, row in rows:
        values = at(row, "metrics", "inter_chunk_latency", "value")
        if values is None:
            continue
        if not isinstance(values, list) or not all(type(gap) in (int, float) for gap in values):
            raise TraceFormatError(
                path, line, f"inter_chunk_latency is {shown(values)}; a list of ms is expected"
            )
        gaps += values
    return np.array(gaps, dtype=np.float64) / 1e3


def _loop(summary: Mapping[str, Any], sent: Int64, last: Int64) -> tuple[int | None, list[str]]:
    """Return the requests in flight of a closed loop, and what is to be said of how it is known."""
    phases = at(summary, "input_config", "phases")
    phase = (
        next((p for p in phases if at(p, "kind") == "profiling"), None) if isinstance(phases, list) else None
    )
    if phase is not None:
        seats = count_at(phase, "concurrency")
        if seats is None:
            return None, []
        if at(phase, "rate") is None:
            return seats, []
        return None, [f"a rate behind a concurrency of {seats}: times of sending may follow from answers"]
    found = constant_in_flight(sent, last)
    return found, [] if found is None else [INFERRED]


def _claims(summary: Mapping[str, Any], derived: Mapping[str, float]) -> list[Claim]:
    """Return the client's summary beside what its requests come to."""
    claims = []
    for ours, theirs in _LATENCIES.items():
        for statistic, key in _STATISTICS.items():
            said, name = number_at(summary, theirs, key), f"{statistic}_{ours}_ms"
            if said is not None and name in derived:
                claims.append(Claim(f"{key} of {theirs}", said, derived[name]))
    return claims


def _prompts(path: Path, rows: Rows) -> list[str | None]:
    """Return the prompt of each request, from the inputs beside the file."""
    entries = at(_document(path.with_name(INPUTS)), "data")
    sessions = {
        str(at(one, "session_id")): at(one, "payloads")
        for one in (entries if isinstance(entries, list) else ())
        if isinstance(at(one, "payloads"), list)
    }
    prompts = []
    for _, row in rows:
        turns = sessions.get(str(at(row, "metadata", "conversation_id")), [])
        turn = at(row, "metadata", "turn_index") or 0
        prompts.append(prompt_text(turns[turn]) if type(turn) is int and 0 <= turn < len(turns) else None)
    return prompts


def _document(path: Path) -> dict[str, Any]:
    """Return a JSON document beside the file; empty where there is none."""
    return parse_object(path, None, read_text(path)) if path.is_file() else {}
