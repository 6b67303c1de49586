"""Result files of `vllm bench serve --save-result --save-detailed`, also several runs of --append-result.

Arrays stand in the order of submission, times are seconds of a monotonic clock, failed requests are all zeros
with a text in `errors`. There is no intended arrival: start_times are when requests really went out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.errors import TraceFormatError
from workloads.readers.draft import Draft
from workloads.readers.source import json_time, json_whole, parse_object, read_json_lines, read_text, shown
from workloads.trace import NS_PER_S, Int64, Trace

ARRAYS = ("input_lens", "output_lens", "start_times", "errors")

NEAR_ZERO_S = 0.0005  # no engine emits tokens 0.5 ms apart: such chunks waited in the client
STARVED_SHARE = 0.05


def read(path: Path, *, drop_failed: bool = False) -> Trace:
    """Read one or more runs; arrivals are the times of sending, or of hand-over under --max-concurrency."""
    runs = read_runs(path)
    parts = [_run(path, line, run) for line, run in runs]
    for (line, _), before, after in zip(runs[1:], parts, parts[1:], strict=False):
        if after[0].min() < before[0].max():
            raise TraceFormatError(
                path, line, "a run that starts before the one above ends; one trace a file"
            )
    warnings = [note for _, run in runs for note in _warnings(run)]
    if len(runs) > 1:
        warnings.append(f"{len(runs)} runs follow each other, with the pauses between them")
    found = _draft(path, parts, closed=any(_closed(run) for _, run in runs))
    found.warnings += warnings
    return found.finish(drop_failed=drop_failed)


def draft(path: Path, line: int | None, run: dict[str, Any]) -> Draft:
    """Return the requests of one run, in the order of submission."""
    return _draft(path, [_run(path, line, run)], closed=_closed(run))


def _draft(path: Path, parts: Sequence[tuple[Int64, Int64, Int64, Int64]], *, closed: bool) -> Draft:
    arrival, inputs, output, failed = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Draft(
        path=path,
        lines=[None] * arrival.size,
        arrival_ns=arrival,
        input_tokens=inputs,
        output_tokens=output,
        failed=failed.astype(np.bool_),
        names=("start_times", "input_lens", "output_lens"),
        completion_order=closed,
        wall_clock=True,
    )


def read_runs(path: Path) -> list[tuple[int | None, dict[str, Any]]]:
    """Return the run of a JSON document, or one run a line."""
    text = read_text(path)
    if "\n{" in text.strip():
        return list(read_json_lines(path, text))
    return [(None, parse_object(path, None, text))]


def _run(path: Path, line: int | None, run: dict[str, Any]) -> tuple[Int64, Int64, Int64, Int64]:
    """Return arrival, input, output and failed of one run."""
    arrays = {name: _array(path, line, run, name) for name in ARRAYS}
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise TraceFormatError(path, line, f"arrays of different lengths: {sizes}")
    if not sizes["errors"]:
        raise TraceFormatError(path, line, "no requests; a trace has at least one")
    lines = [line] * sizes["errors"]
    arrival = json_time(path, lines, "start_times", arrays["start_times"], NS_PER_S)
    if _closed(run) and "queue_times" in run:
        queued = _array(path, line, run, "queue_times")
        if len(queued) != len(lines):
            raise TraceFormatError(path, line, f"{len(queued)} queue_times for {len(lines)} requests")
        arrival = arrival - json_time(path, lines, "queue_times", queued, NS_PER_S)
    output = json_whole(path, lines, "output_lens", arrays["output_lens"])
    failed = np.array([error not in ("", None) for error in arrays["errors"]], dtype=np.int64)
    inputs = json_whole(path, lines, "input_lens", arrays["input_lens"])
    return arrival, inputs, output, failed | (output == 0)


def _array(path: Path, line: int | None, run: dict[str, Any], name: str) -> list[Any]:
    value = run.get(name)
    if value is None:
        raise TraceFormatError(
            path, line, f"no {name}; record the run with --save-result --save-detailed to keep each request"
        )
    if not isinstance(value, list):
        raise TraceFormatError(
            path, line, f"{name} is {shown(value)}; a list is expected, one entry a request"
        )
    return value


def _closed(run: dict[str, Any]) -> bool:
    return run.get("max_concurrency") is not None


def _warnings(run: dict[str, Any]) -> list[str]:
    notes = []
    if _closed(run):
        limit = run["max_concurrency"]
        what = "hand-over to the client" if "queue_times" in run else "sending"
        notes.append(f"sent with max_concurrency {limit}: arrivals are times of {what}, not of a user")
    itls = run.get("itls")
    gaps = _gaps(itls if isinstance(itls, list) else [])
    if gaps.size:
        share = float(np.mean(gaps < NEAR_ZERO_S))
        if share > STARVED_SHARE:
            notes.append(
                f"starved client: {share:.0%} of the token gaps are below {NEAR_ZERO_S * 1e3:g} ms (median "
                f"{np.median(gaps) * 1e3:.3f} ms, mean {gaps.mean() * 1e3:.1f} ms); its latencies and its "
                "sending times are not the server's"
            )
    return notes


def _gaps(itls: Sequence[Any]) -> NDArray[np.float64]:
    runs = [run for run in itls if isinstance(run, list)]
    return np.array([gap for run in runs for gap in run if isinstance(gap, float)], dtype=np.float64)
