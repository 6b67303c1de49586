"""Runs of a vLLM engine on CPU cores with step logs (`vllm_cpu_engine`): requests as they were, in one process.

The engine is driven in its own process, without API server, tokeniser or client: a request whose time has come is
handed over between two steps. Runs `calib_*` are what a profile is fitted to (`calibration_logs`); they are not runs
to predict. In runs with sessions a turn is sent some time after the answer before it, and is so in the simulation:
of the recorded arrivals only those of first turns enter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.recorded_prefixes import block_contents
from calibration.serving.measured_run import Label, MeasuredRun, Part
from calibration.serving.predict import metrics_of
from calibration.serving.readers.tables import read_rows
from calibration.step_log import RecordedRequest
from sim.engine.records import Status
from sim.metrics import Requests
from sim.scenario.reading import load_scenario
from workloads.build import Workload
from workloads.errors import InputError, TraceFormatError
from workloads.trace import NS_PER_S, Trace, Turns, session_codes

CALIBRATION: Final = "calib_"
"""How the names of runs begin that were made to fit a profile to."""
DRIFT: Final = "the machine's speed differs by 5 to 15% between runs, and from one 10 s to the next"
"""Measured with equal inputs; see the description of the data."""
_LONGEST_S: Final = 1e6  # of a run

Starts = Mapping[tuple[int, str], float]
"""(Seed of a trace, request) -> arrival [s] of a request that waits for none."""


def recognises(path: Path) -> bool:
    """Tell whether the folder holds recorded runs of an engine, some of them to calibrate from; never raises."""
    return any(folder.name.startswith(CALIBRATION) for folder in _logged(path))


def calibration_logs(path: Path) -> list[Path]:
    """Return the runs that a profile is fitted to, for `calibration.engine_log.read_engine_log`."""
    found = [folder for folder in _logged(path) if folder.name.startswith(CALIBRATION)]
    if not found:
        raise InputError(f"{path}: no run {CALIBRATION}* with meta.json and steps.csv to calibrate from")
    return found


def read(path: Path, profile: Path) -> list[MeasuredRun]:
    """Read the runs with results, then those of `blind_inputs`, whose results are not there.

    `profile` is what the scenarios name as their hardware: a fit to `calibration_logs`.
    """
    measured = [
        _read(folder / "meta.json", folder / "requests.csv")
        for folder in _logged(path)
        if not folder.name.startswith(CALIBRATION)
    ]
    if not measured:
        raise InputError(f"{path}: no run with meta.json and steps.csv beside those to calibrate from")
    starts = {(run.seed, row.name): row.arrival_s for run in measured for row in run.rows if not row.parent}
    blind = [
        _read(meta, meta.with_name(meta.name.removesuffix(".meta.json") + ".csv"), starts)
        for meta in sorted((path / "blind_inputs").glob("*.meta.json"))
    ]
    return [_run(recorded, profile) for recorded in (*measured, *blind)]


def _logged(path: Path) -> list[Path]:
    return sorted(
        steps.parent for steps in path.glob("*/steps.csv") if (steps.parent / "meta.json").is_file()
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A request, its times in seconds.

    arrival_s   when it was sent; of a turn that waits for an answer, and was not measured, when it could be at least
    results     (TTFT, E2EL), where measured
    """

    name: str
    arrival_s: float
    earliest_s: float
    results: tuple[float, float] | None
    prompt_tokens: int
    output_tokens: int
    session: str | None
    parent: str
    think_s: float
    system_prompt: str


@dataclass(frozen=True)
class _Recorded:
    """A run: its meta data, and its requests by the earliest time at which each could be sent."""

    meta_path: Path
    table: Path
    meta: Mapping[str, Any]
    seed: int
    rows: tuple[_Row, ...]


def _read(meta_path: Path, table: Path, starts: Starts | None = None) -> _Recorded:
    """Read one run; `starts` has arrivals that a table without results may lack."""
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        seed = int(meta["trace_seed"])
    except OSError as error:
        raise InputError(f"{meta_path}: cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{meta_path}: not the meta data of a run ({error!r})") from None
    rows: dict[str, _Row] = {}
    for line, row in enumerate(read_rows(table), start=2):
        try:
            rows[row["request_id"]] = _row(row, rows, {} if starts is None else starts, seed)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceFormatError(table, line, f"not a request of a run ({error!r})") from None
    if not rows:
        raise TraceFormatError(table, None, "has no rows")
    return _Recorded(
        meta_path, table, meta, seed, tuple(sorted(rows.values(), key=lambda row: row.earliest_s))
    )


def _row(row: Mapping[str, str], before: Mapping[str, _Row], starts: Starts, seed: int) -> _Row:
    """A first turn without an arrival has that of the same trace in a measured run."""
    name, parent = row["request_id"], row.get("parent") or ""
    think = _seconds(row, "think_s") if parent else 0.0
    if parent:
        earliest = before[parent].earliest_s + think
    else:
        earliest = _seconds(row, "arrival_s") if "arrival_s" in row else starts[seed, name]
    return _Row(
        name=name,
        arrival_s=_seconds(row, "arrival_s") if "arrival_s" in row else earliest,
        earliest_s=earliest,
        results=(_seconds(row, "ttft_s"), _seconds(row, "e2e_s")) if "ttft_s" in row else None,
        prompt_tokens=int(row["prompt_tokens"]),
        output_tokens=int(row["output_tokens"]),
        session=row.get("session"),
        parent=parent,
        think_s=think,
        system_prompt=row.get("sys_id") or "",
    )


def _seconds(row: Mapping[str, str], column: str) -> float:
    value = float(row[column])
    if not 0 <= value < _LONGEST_S:
        raise ValueError(f"{column} is {row[column]}")
    return value


def _run(recorded: _Recorded, profile: Path) -> MeasuredRun:
    try:
        raw, curve, labels = _scenario(recorded, profile), _curve(recorded.meta), _labels(recorded.meta)
        name, block_size = str(recorded.meta["run"]), int(recorded.meta["block_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{recorded.meta_path}: not the meta data of a run ({error!r})") from None
    return MeasuredRun(
        name=name,
        curve=curve,
        labels=labels,
        scenario=load_scenario(raw),
        parts=_parts(recorded.rows),
        workload=Workload(_trace(recorded.rows, block_size)),
        caveats=(DRIFT,),
    )


def _scenario(recorded: _Recorded, profile: Path) -> dict[str, Any]:
    """Engine arguments as they were; one step is prepared after the other, as this engine does in one process."""
    meta = recorded.meta
    args = meta["engine_args"]
    taken = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enforce_eager",
        "enable_prefix_caching",
    )
    return {
        "model": str(recorded.meta_path),
        "hardware": {"profile": str(profile)},
        "engine": {name: args[name] for name in taken}
        | {
            "async_scheduling": False,
            "block_size": meta["block_size"],
            "num_gpu_blocks_override": meta["num_kv_blocks"],
        },
        "workload": {"trace": str(recorded.table)},
    }


def _curve(meta: Mapping[str, Any]) -> str:
    """Name what runs of one configuration share, whatever their load, and repeats of them."""
    args = meta["engine_args"]
    caching = "prefix cache" if args["enable_prefix_caching"] else "no prefix cache"
    return f"budget {args['max_num_batched_tokens']}, {meta['num_kv_blocks']} blocks, {caching}"


def _labels(meta: Mapping[str, Any]) -> dict[str, Label]:
    labels: dict[str, Label] = {
        "data": "vllm_cpu_engine",
        "engine": f"vllm {meta['version']}",
        "system": "cpu",
        "model": "llama-44m",
        "tensor_parallel_size": 1,
        "precision": "bfloat16",
    }
    load = meta.get("nominal_load_pct")
    return labels if load is None else labels | {"load_percent": load}


def _parts(rows: Sequence[_Row]) -> tuple[Part, ...]:
    """Compute what was measured as what is simulated is; nothing where a request has no result."""
    results = [row.results for row in rows if row.results is not None]
    if len(results) < len(rows):
        return ()
    arrival = np.array([row.arrival_s for row in rows])
    ttft, e2el = np.array(results).T
    seconds = {"arrival_ns": arrival, "first_token_ns": arrival + ttft, "last_token_ns": arrival + e2el}
    columns = {name: np.rint(NS_PER_S * column).astype(np.int64) for name, column in seconds.items()}
    columns["status"] = np.full(len(rows), Status.COMPLETED, dtype=np.int64)
    columns["output_tokens"] = np.array([row.output_tokens for row in rows], dtype=np.int64)
    return (Part(metrics_of(Requests(columns))),)


def _trace(rows: Sequence[_Row], block_size: int) -> Trace:
    """Requests as they can be sent; sessions say who waits for whom, and with it what prompts share."""
    columns = (
        [round(NS_PER_S * row.earliest_s) for row in rows],
        [row.prompt_tokens for row in rows],
        [row.output_tokens for row in rows],
    )
    if all(row.session is None for row in rows):
        return Trace.build(*columns, source="vllm_cpu_engine")
    place = {row.name: i for i, row in enumerate(rows)}
    parents = [place[row.parent] if row.parent else -1 for row in rows]
    recorded = [
        RecordedRequest(
            request_id=row.name,
            arrival_s=row.arrival_s,
            admit_s=row.arrival_s,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            system_prompt=row.system_prompt,
            parent=row.parent,
        )
        for row in rows
    ]
    return Trace.build(
        *columns,
        session=session_codes([row.session for row in rows]),
        hashes=block_contents(recorded, block_size),
        turns=Turns.build(parents, parents, [round(NS_PER_S * row.think_s) for row in rows]),
        source="vllm_cpu_engine",
    )
