"""Results of `vllm bench serve --save-result --save-detailed`: one measured run a run of the file.

Arrays are seconds, summaries milliseconds. A request's last token came `latencies` after it was sent (older files:
`ttfts` and its `itls` together). With --max-concurrency requests wait in the client first: at an infinite rate that
is a closed loop; behind a finite rate the times of sending are replayed where the limit ever held a request back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.serving.measured_run import RATES, MeasuredRun
from calibration.serving.predict import metrics_of
from calibration.serving.readers.client_judgement import measured_run
from calibration.serving.readers.client_run import Claim, ClientRun, Float, requests_seen
from calibration.serving.readers.json_paths import count_at, number_at
from calibration.serving.readers.scrapes import figures_beside
from sim.metrics import Requests
from workloads.errors import InputError, TraceFormatError
from workloads.readers import detect_format, vllm
from workloads.readers.source import json_time, shown
from workloads.trace import NS_PER_S, Int64

CLIENT: Final = "vllm bench serve"
_HELD_BACK_S: Final = 0.01  # a wait in the client beyond the time of a task switch


def recognises(path: Path) -> bool:
    """Tell whether the file is one of these results; never raises."""
    try:
        return path.is_file() and detect_format(path) == "vllm"
    except InputError:
        return False


def read(path: Path, scenario_raw: Mapping[str, Any]) -> list[MeasuredRun]:
    """Read each run of a file; `scenario_raw` is what they ran on."""
    runs = vllm.read_runs(path)
    if any(run.get("backend") == "sim" for _, run in runs):
        raise InputError(f"{path}: a result of the simulator itself (backend: sim), and no measurement")
    several = len(runs) > 1
    return [
        measured_run(_client_run(path, line, run, number if several else None), scenario_raw)
        for number, (line, run) in enumerate(runs, 1)
    ]


def _client_run(path: Path, line: int | None, run: Mapping[str, Any], number: int | None) -> ClientRun:
    draft = vllm.draft(path, line, dict(run))
    every = [line] * draft.failed.size
    sent = json_time(path, every, "start_times", run["start_times"], NS_PER_S)
    held_back = _held_back(run)
    seats = count_at(run, "max_concurrency") if run.get("request_rate") == "inf" else None
    if held_back and seats is None:
        draft = replace(draft, arrival_ns=sent)
    trace, rows = draft.finish(drop_failed=True), draft.rows()
    first = sent + json_time(path, every, "ttfts", _array(path, line, run, "ttfts"), NS_PER_S)
    last = sent + _latency_ns(path, line, run)
    seen = requests_seen(trace, sent[rows], first[rows], last[rows])
    return ClientRun(
        path=path,
        client=CLIENT,
        number=number,
        trace=trace,
        requests=seen,
        concurrency=seats,
        gaps_s=_gaps(run, rows),
        claims=_claims(run, seen),
        server=None if number else figures_beside(path),
        caveats=_caveats(run) if held_back and seats is None else (),
    )


def _latency_ns(path: Path, line: int | None, run: Mapping[str, Any]) -> Int64:
    """From sending to the last token."""
    count = len(run["start_times"])
    if run.get("latencies") is not None:
        found = _array(path, line, run, "latencies")
    else:
        ttfts, itls = _array(path, line, run, "ttfts"), _array(path, line, run, "itls")
        try:
            found = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
        except TypeError:
            raise TraceFormatError(path, line, "itls are no lists of seconds, one a request") from None
    return json_time(path, [line] * count, "latencies", found, NS_PER_S)


def _array(path: Path, line: int | None, run: Mapping[str, Any], name: str) -> list[Any]:
    value, count = run.get(name), len(run["start_times"])
    if not isinstance(value, list) or len(value) != count:
        raise TraceFormatError(
            path, line, f"{name} is {shown(value)}; a list of {count} is expected, one entry a request"
        )
    return value


def _held_back(run: Mapping[str, Any]) -> bool:
    """Tell whether --max-concurrency made a request wait; where waits were not kept it may have."""
    if run.get("max_concurrency") is None:
        return False
    waits = run.get("queue_times")
    if not isinstance(waits, list):
        return True
    return any(type(wait) in (int, float) and wait > _HELD_BACK_S for wait in waits)


def _gaps(run: Mapping[str, Any], rows: Int64) -> Float:
    """Return the gaps between chunks of the requests that succeeded."""
    itls = run.get("itls")
    if not isinstance(itls, list) or len(itls) != len(run["start_times"]):
        return np.zeros(0)
    gaps = [itls[row] for row in rows.tolist() if isinstance(itls[row], list)]
    return np.array([gap for one in gaps for gap in one if type(gap) in (int, float)], dtype=np.float64)


def _caveats(run: Mapping[str, Any]) -> Sequence[str]:
    limit = run["max_concurrency"]
    return (
        f"a rate behind max_concurrency {limit}: times of sending are replayed, which follow from answers too",
    )


def _claims(run: Mapping[str, Any], seen: Requests) -> Sequence[Claim]:
    """Return the summary beside what the arrays say; the rates of this client run over another time than ours."""
    derived: dict[str, float] = {name: value for name, value in metrics_of(seen).items() if name not in RATES}
    derived |= {"completed": len(seen), "total_output_tokens": int(seen.output_tokens.sum())}
    said = {name: number_at(run, name) for name in derived}
    return [Claim(name, value, derived[name]) for name, value in said.items() if value is not None]
