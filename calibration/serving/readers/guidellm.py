"""Results of guidellm (benchmarks.json): one measured run a benchmark of the file.

Unix seconds. What this client calls `inter_token_latency` is one mean a request, our TPOT, and its mean over
requests is weighted by their tokens; its `time_per_output_token` is the whole latency over all tokens, and nothing of
ours. Times of single tokens are not kept, so a starved client does not show here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.readers.client_judgement import measured_run
from calibration.serving.readers.client_run import Claim, ClientRun, Float, requests_seen
from calibration.serving.readers.json_paths import at, count_at, number_at
from calibration.serving.readers.prompts import prompt_text, with_prefixes
from calibration.serving.readers.scrapes import figures_beside
from sim.engine.clock import NS_PER_MS
from sim.metrics import Requests
from workloads.errors import InputError, TraceFormatError
from workloads.readers import detect_format, guidellm
from workloads.readers.source import json_time
from workloads.trace import NS_PER_S, Int64

CLIENT: Final = "guidellm"
_OLDER: Final = {"first_token_iteration": "first_iteration", "last_token_iteration": "last_iteration"}
"""Names of times in files of earlier versions."""

Record = Mapping[str, Any]


def recognises(path: Path) -> bool:
    """Tell whether the file is one of these results; never raises."""
    try:
        return path.is_file() and detect_format(path) == "guidellm"
    except InputError:
        return False


def read(path: Path, scenario_raw: Mapping[str, Any]) -> list[MeasuredRun]:
    """Read each benchmark of a file; `scenario_raw` is what they ran on."""
    benchmarks = guidellm.read_benchmarks(path)
    several = len(benchmarks) > 1
    return [
        measured_run(_client_run(path, benchmark, number if several else None), scenario_raw)
        for number, benchmark in enumerate(benchmarks, 1)
    ]


def _client_run(path: Path, benchmark: dict[str, Any], number: int | None) -> ClientRun:
    records = guidellm.read_records(path, benchmark)
    _check_complete(path, benchmark, len(records.good))
    draft = guidellm.draft(path, benchmark, records)
    trace, rows = draft.finish(drop_failed=True), draft.rows()
    good = [records.good[row] for row in rows.tolist()]
    sent = _times(path, good, "request_start")
    concurrency, ramp = _loop(benchmark)
    first, last = _times(path, good, "first_token_iteration"), _times(path, good, "last_token_iteration")
    seen = requests_seen(trace, sent, first, last)
    return ClientRun(
        path=path,
        client=CLIENT,
        number=number,
        trace=with_prefixes(trace, [prompt_text(record.get("request_args")) for record in good]),
        requests=seen,
        cut_off=len(benchmark["requests"].get("incomplete") or ()),
        late_s=np.zeros(0) if concurrency else _late_s(path, good, sent),
        concurrency=concurrency,
        server=None if number else figures_beside(path),
        claims=_claims(benchmark, seen, _times(path, good, "request_end") - sent),
        caveats=[f"the closed loop was filled over {ramp:g} s, and is filled at once here"] if ramp else [],
    )


def _check_complete(path: Path, benchmark: Mapping[str, Any], recorded: int) -> None:
    """Refuse a file that keeps some requests only: the load cannot be replayed."""
    sent = count_at(benchmark, "scheduler_metrics", "requests_made", "successful")
    if sent is not None and sent > recorded:
        raise TraceFormatError(
            path,
            None,
            f"{recorded} of {sent} successful requests are recorded, so the load cannot be replayed; "
            "run guidellm without a sample size, warm-up and cool-down",
        )


def _loop(benchmark: dict[str, Any]) -> tuple[int | None, float]:
    """Return the requests in flight of a closed loop, and the time over which it was filled [s]."""
    strategy = guidellm.strategy(benchmark)
    seats = {
        "synchronous": 1,
        "concurrent": count_at(strategy, "streams"),
        "throughput": count_at(strategy, "max_concurrency"),
    }.get(str(strategy["type_"]) if "type_" in strategy else "")
    return seats, 0.0 if seats is None else number_at(strategy, "rampup_duration") or 0.0


def _times(path: Path, records: Sequence[Record], name: str) -> Int64:
    """Return a time of each request, unix nanoseconds; requests that were not streamed lack some."""
    older = _OLDER.get(name, name)
    timings = [at(record, "info", "timings") for record in records]
    found = [at(one, older) if at(one, name) is None else at(one, name) for one in timings]
    if None in found and name.endswith("token_iteration"):
        raise TraceFormatError(
            path,
            None,
            f"request {found.index(None)} has no {name}; run guidellm with streaming to measure tokens",
        )
    return json_time(path, [None] * len(records), f"info.timings.{name}", found, NS_PER_S)


def _late_s(path: Path, records: Sequence[Record], sent: Int64) -> Float:
    """Return the seconds from the intended start of each request to its real one; nothing where none was intended."""
    if any(at(record, "info", "timings", "targeted_start") is None for record in records):
        return np.zeros(0)
    return (sent - _times(path, records, "targeted_start")) / NS_PER_S


def _claims(benchmark: Mapping[str, Any], seen: Requests, latency_ns: Int64) -> list[Claim]:
    """Return the client's means beside the same of its requests, weighted as it weights them."""
    gaps = int((seen.output_tokens - 1).sum())
    derived = {
        "time_to_first_token_ms": float(seen.ttft_ns.mean()) / NS_PER_MS,
        "request_latency": float(latency_ns.mean()) / NS_PER_S,
        "inter_token_latency_ms": float((seen.e2el_ns - seen.ttft_ns).sum()) / NS_PER_MS / max(gaps, 1),
    }
    said = {name: number_at(benchmark, "metrics", name, "successful", "mean") for name in derived}
    return [
        Claim(f"the mean of {name}", value, derived[name])
        for name, value in said.items()
        if value is not None
    ]
