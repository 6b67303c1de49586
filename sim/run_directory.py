"""A run directory: everything of a run as files, written whole or not at all.

    scenario.lock.yaml   the scenario as resolved, with versions and the profile's hash
    summary.json         keys of `vllm bench serve`, ours under `sim`
    requests.parquet     one row per request
    timeline.parquet     one row per change of a replica's batch
    links.parquet        one row per change of what an owner has of a link; only where anything moved beside the steps
    kv_access.parquet    page reads by layer group and distance from the end; only where KV is in host memory

The same seed gives the same bytes, but for the key `date` of the summary.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sim.engine.paged_steps import FACTS
from sim.engine.records import Status, StepColumns
from sim.errors import ConfigError
from sim.metrics import Requests, fragmentation, waiting_at
from sim.scenario.sections import Scenario
from sim.service import Service
from sim.simulation import Result
from workloads.trace import Trace

LOCK = "scenario.lock.yaml"
SUMMARY = "summary.json"
REQUESTS = "requests.parquet"
TIMELINE = "timeline.parquet"
LINKS = "links.parquet"
KV_ACCESS = "kv_access.parquet"


OWN_FILES = frozenset(
    (
        LOCK,
        SUMMARY,
        REQUESTS,
        TIMELINE,
        LINKS,
        KV_ACCESS,
        "comparison.json",
        "plan.json",
        "scenario.yaml",
        "report.html",
        # of a confirmation, and of the step log of an engine's run
        "confirmation.json",
        "profile.json",
        "meta.json",
        "requests.csv",
        "steps.csv",
        # of measured runs, predicted
        "scores.json",
        "predictions.parquet",
    )
)
_OTHER_KINDS = frozenset(("comparison.json", "plan.json", "confirmation.json"))  # which hold a lock file too
ARMS = "arms"


@contextmanager
def new_directory(target: Path, marker: str = LOCK) -> Iterator[Path]:
    """Give a folder beside `target` that takes its place when all went well, and vanishes when not.

    An existing `target` is replaced only where everything in it is ours. `marker` is the file that says so.
    """
    target = target.resolve()
    check_replaceable(target, marker)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ConfigError(f"--out {target}: cannot be written ({error.strerror})") from None
    try:
        scratch.chmod(0o755)
        yield scratch
        try:
            if target.exists():
                shutil.rmtree(target)
            scratch.rename(target)
        except OSError as error:
            raise ConfigError(f"--out {target}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_replaceable(target: Path, marker: str = LOCK) -> None:
    """Raise ConfigError where writing to `target` would destroy something that is not ours, or cannot work."""
    if target.is_dir():
        foreign = next(_foreign(target), None)
        if foreign is not None:
            raise ConfigError(
                f"--out {target}: has other files in it ({foreign}); give a new or empty directory"
            )
        names = {path.name for path in target.iterdir()}
        if names and (marker not in names or (marker == LOCK and names & _OTHER_KINDS)):
            raise ConfigError(f"--out {target}: holds results of another kind; give a new or empty directory")
    elif target.exists():
        raise ConfigError(f"--out {target}: is a file; give a directory")
    place = next(parent for parent in target.resolve().parents if parent.exists())
    if not place.is_dir():
        raise ConfigError(f"--out {target}: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {target}: {place} cannot be written to")


def _foreign(target: Path) -> Iterator[Path]:
    """Whatever in a result directory we did not write: only our files, and run directories of arms, are ours."""
    for path in sorted(target.rglob("*")):
        parts = path.relative_to(target).parts
        arm = len(parts) >= 2 and parts[0] == ARMS
        if path.is_symlink():
            yield path.relative_to(target)
        elif path.is_dir():
            if parts != (ARMS,) and not (arm and len(parts) == 2 and (path / LOCK).is_file()):
                yield path.relative_to(target)
        elif path.name not in OWN_FILES or not (len(parts) == 1 or (arm and len(parts) == 3)):
            yield path.relative_to(target)


def write_run(result: Result, trace: Trace, directory: Path) -> None:
    """Write the files into an existing folder."""
    (directory / LOCK).write_text(lock_text(result.scenario, result.service), encoding="utf-8")
    (directory / SUMMARY).write_text(json_text(result.summary), encoding="utf-8")
    _write_table(request_columns(result.requests, trace), directory / REQUESTS)
    _write_table(timeline_columns(result), directory / TIMELINE)
    if result.links is not None:
        _write_table(result.links.columns, directory / LINKS)
    if result.paging is not None:
        _write_table(result.paging.columns, directory / KV_ACCESS)


def json_text(document: Any) -> str:  # noqa: ANN401  anything that is JSON
    """One JSON document, readable, without NaN."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def lock_text(scenario: Scenario, service: Service) -> str:
    """The scenario as it ran, and what it ran on."""
    profile = service.profile
    lock = {
        "servetwin": version("servetwin"),
        "numpy": np.__version__,
        "profile": {"name": profile.name, "engine": profile.engine, "hash": profile.content_hash},
        "num_gpu_blocks": service.capacity.num_gpu_blocks,
        "max_model_len": service.max_model_len,
        "scenario": scenario.model_dump(mode="json"),
    }
    return yaml.safe_dump(lock, sort_keys=False)


def request_columns(requests: Requests, trace: Trace) -> dict[str, Any]:
    """One row per request in the order of the trace; times in seconds, null where it never came to that."""
    columns, done = requests.columns, requests.completed

    def seconds(values_ns: Any) -> Any:  # noqa: ANN401  arrays in, arrays out
        full = np.full(len(requests), np.nan)
        full[done] = values_ns / 1e9
        return full

    tenants = np.array(trace.tenant_names, dtype=object)[trace.tenant]
    names = np.array([status.name.lower() for status in Status], dtype=object)
    return {
        "request_id": np.arange(len(requests)),
        "tenant": tenants,
        "session_id": trace.session,
        "replica": columns["replica"],
        "arrival_s": columns["arrival_ns"] / 1e9,
        "input_tokens": columns["input_tokens"],
        "output_tokens": columns["output_tokens"],
        "cached_tokens": columns["cached_tokens"],
        "status": names[columns["status"]],
        "ttft_s": seconds(requests.ttft_ns),
        "tpot_s": seconds(requests.tpot_ns),
        "e2el_s": seconds(requests.e2el_ns),
        "preemptions": columns["preemptions"],
        **{f"stage_{name}_s": seconds(values) for name, values in requests.stages_ns.items()},
    }


def timeline_columns(result: Result) -> dict[str, Any]:
    """One row per run of steps with the same batch, by replica and time; an idle replica has a row of its own.

    Such a row has zeros, and null for what is not known of an idle replica. `prefix_queries` and `prefix_hits` count
    up; `kv_used_blocks_<tier>` is there with `qos` only; `kv_fragmentation` is F = (free - largest run of free) / free.
    """
    parts = [_replica_timeline(result, index, log) for index, log in enumerate(result.replicas)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _replica_timeline(result: Result, index: int, log: StepColumns) -> dict[str, Any]:
    end_ns = log.start_ns + log.row_ns
    idle = np.ones(end_ns.size, dtype=np.bool_)  # whether nothing follows a row directly
    idle[:-1] = end_ns[:-1] != log.start_ns[1:]
    times = np.concatenate([log.start_ns, end_ns[idle]])
    order = np.argsort(times, kind="stable")

    def column(values: Any, when_idle: Any = 0) -> Any:  # noqa: ANN401  arrays in, arrays out
        return np.concatenate([values, np.broadcast_to(when_idle, int(idle.sum()))])[order]

    times, running = times[order], column(log.running)
    service = result.service
    waste = log.first_used_blocks * service.limits.block_size - log.stored_tokens
    return {
        "t_s": times / 1e9,
        "replica": np.full(times.size, index),
        "running": running,
        "waiting": waiting_at(result.requests, index, times, running),
        "kv_used_blocks": column(log.first_used_blocks),
        **{f"kv_used_blocks_{tier}": column(held) for tier, held in _pools(result, log)},
        "kv_cached_blocks": column(log.cached_blocks.astype(np.float64), np.nan),
        "kv_waste_tokens": column(waste),
        "kv_fragmentation": column(fragmentation(log, service.capacity.usable_blocks)),
        "prefix_queries": column(log.queries, log.queries[idle]),
        "prefix_hits": column(log.hits, log.hits[idle]),
        "prefill_tokens": column(log.prefill_tokens),
        "decode_seqs": column(log.decodes),
        "steps": column(log.steps),
        "duration_s": column(log.row_ns) / 1e9,
        **{name: column(values) for name, values in _paging_by_row(result, index, log).items()},
    }


def _paging_by_row(result: Result, index: int, log: StepColumns) -> dict[str, Any]:
    """What the steps of each row read of paged KV, waited for and prefetched, summed; nothing where KV is in HBM."""
    if result.paging is None:
        return {}
    facts = result.paging.steps[index]
    if log.steps.size:
        facts = np.add.reduceat(facts, np.cumsum(log.steps) - log.steps)
    return {f"kv_{name}": facts[:, place] for place, name in enumerate(FACTS)}


def _pools(result: Result, log: StepColumns) -> list[tuple[str, Any]]:
    """Blocks held by each tier of `qos`, in the first step of each row."""
    tiers = [] if result.scenario.qos is None else list(result.scenario.qos.tiers)
    return [(tier, log.first_pool_blocks[:, lane]) for lane, tier in enumerate(tiers)]


def _write_table(columns: dict[str, Any], path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415  a third of the time of a short run, and only where files are written
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
    pq.write_table(table, path, compression="zstd")
