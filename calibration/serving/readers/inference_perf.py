"""Results of inference-perf (per_request_lifecycle_metrics.json): one measured run, a part for each of its stages.

Seconds of a monotonic clock. First and last token are times of chunks; how many tokens there were is the server's
word where it gave one, since the client counts by tokenising anew, and puts several tokens of a chunk at one time.
Records do not name their stage: stages follow each other, and `stage_N_lifecycle_metrics.json` beside the file tells
how many requests each had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.serving.measured_run import Label, MeasuredRun
from calibration.serving.predict import metrics_of
from calibration.serving.readers.client_judgement import measured_run
from calibration.serving.readers.client_run import (
    INFERRED,
    Claim,
    ClientRun,
    Float,
    Stage,
    constant_in_flight,
    requests_seen,
)
from calibration.serving.readers.json_paths import at, count_at, number_at
from calibration.serving.readers.prompts import prompt_text, with_prefixes
from calibration.serving.readers.scrapes import figures_beside
from sim.metrics import Requests
from workloads.errors import InputError, TraceFormatError
from workloads.readers import detect_format, inference_perf
from workloads.readers.source import json_time, parse_object, read_text
from workloads.trace import NS_PER_S, Int64

CLIENT: Final = "inference-perf"
_STAGE: Final = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")
_STATISTICS: Final = {"mean": "mean", "median": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_LATENCIES: Final = {"ttft": "time_to_first_token", "tpot": "time_per_output_token"}

Record = Mapping[str, Any]


def recognises(path: Path) -> bool:
    """Tell whether the file is one of these results; never raises."""
    try:
        return path.is_file() and detect_format(path) == "inference-perf"
    except InputError:
        return False


def read(path: Path, scenario_raw: Mapping[str, Any]) -> list[MeasuredRun]:
    """Read the run of a file; `scenario_raw` is what it ran on."""
    records = inference_perf.read_records(path)
    draft = inference_perf.draft(path, records)
    trace, rows = draft.finish(drop_failed=True), draft.rows()
    good = [records[row] for row in rows.tolist()]
    tokens = [_token_times(path, row, record) for row, record in zip(rows.tolist(), good, strict=True)]
    every = [None] * len(good)
    sent = json_time(path, every, "start_time", [record["start_time"] for record in good], NS_PER_S)
    first = json_time(path, every, "output_token_times", [times[0] for times in tokens], NS_PER_S)
    last = json_time(path, every, "output_token_times", [times[-1] for times in tokens], NS_PER_S)
    seen = requests_seen(trace, sent, first, last)
    summaries = _stage_summaries(path)
    stages, said = _stages(draft.arrival_ns, rows, summaries)
    ended = json_time(path, every, "end_time", [record.get("end_time") for record in good], NS_PER_S)
    concurrency = constant_in_flight(sent, ended)
    run = ClientRun(
        path=path,
        client=CLIENT,
        trace=with_prefixes(trace, [prompt_text(record.get("request")) for record in good]),
        requests=seen,
        concurrency=concurrency,
        gaps_s=_gaps_s(good),
        claims=[*_own_claims(good, seen), *_stage_claims(stages, summaries, seen)],
        stages=stages,
        server=figures_beside(path),
        caveats=[*trace.warnings, *said, *([INFERRED] if concurrency else [])],
    )
    return [measured_run(run, scenario_raw)]


def _token_times(path: Path, row: int, record: Record) -> list[Any]:
    """Return times of tokens; those of one chunk are the same."""
    times = at(record, "info", "response_metrics", "output_token_times")
    if not isinstance(times, list) or not times:
        raise TraceFormatError(
            path, None, f"record {row} has no output_token_times; run inference-perf with streaming: true"
        )
    return times


def _gaps_s(records: Sequence[Record]) -> Float:
    """Return the gaps between chunks, where their times were kept."""
    gaps: list[Float] = []
    for record in records:
        times = at(record, "info", "response_metrics", "chunk_times")
        if isinstance(times, list) and all(type(time) in (int, float) for time in times):
            gaps.append(np.diff(np.array(times, dtype=np.float64)))
    return np.concatenate(gaps) if gaps else np.zeros(0)


def _stage_summaries(path: Path) -> list[Mapping[str, Any]]:
    """Return the stages' own summaries, in order; none where any is missing."""
    found: dict[int, Mapping[str, Any]] = {}
    for file in path.parent.iterdir():
        if match := _STAGE.fullmatch(file.name):
            found[int(match[1])] = parse_object(file, None, read_text(file))
    return [found[number] for number in sorted(found)] if sorted(found) == list(range(len(found))) else []


def _stages(
    started: Int64 | None, rows: Int64, summaries: Sequence[Mapping[str, Any]]
) -> tuple[list[Stage], list[str]]:
    """Share the requests out among the stages by the order in which they were sent, failed ones included."""
    counts = [count_at(one, "load_summary", "count") or 0 for one in summaries]
    if started is None or len(counts) < 2:
        return [], []
    if sum(counts) != started.size:
        return [], [
            f"the stages beside the file count {counts} requests, the file {started.size}: scored as one"
        ]
    stage = np.empty(started.size, dtype=np.int64)
    stage[np.argsort(started, kind="stable")] = np.repeat(np.arange(len(counts)), counts)
    found = []
    for number, summary in enumerate(summaries):
        labels: dict[str, Label] = {"stage": number}
        rate = number_at(summary, "load_summary", "requested_rate")
        found.append(
            Stage(stage[rows] == number, labels | ({"request_rate": rate} if rate is not None else {}))
        )
    return found, []


def _own_claims(records: Sequence[Record], seen: Requests) -> list[Claim]:
    """Return means of the records' own times [s] beside what follows from their tokens, over those that have both."""
    claims = []
    derived = {
        "time_to_first_token": seen.ttft_ns / NS_PER_S,
        "time_per_output_token": seen.tpot_ns / NS_PER_S,
    }
    for name, values in derived.items():
        said = [number_at(record, "computed_metrics", name) for record in records]
        both = np.array([value is not None for value in said]) & ~np.isnan(values)
        if both.any():
            stated = np.array(said, dtype=np.float64)[both]
            claims.append(Claim(f"the mean of {name}", float(stated.mean()), float(values[both].mean())))
    return claims


def _stage_claims(
    stages: Sequence[Stage], summaries: Sequence[Mapping[str, Any]], seen: Requests
) -> list[Claim]:
    """Return each stage's summary beside what its requests come to [s]."""
    claims = []
    for number, stage in enumerate(stages):
        derived = metrics_of(seen, stage.counted)
        for ours, theirs in _LATENCIES.items():
            for statistic, key in _STATISTICS.items():
                said = number_at(summaries[number], "successes", "latency", theirs, key)
                name = f"{statistic}_{ours}_ms"
                if said is not None and name in derived:
                    claims.append(Claim(f"{key} of {theirs} in stage {number}", said, derived[name] / 1e3))
    return claims
