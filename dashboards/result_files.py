"""Reading what a command wrote: runs, comparisons and plans. Whatever is missing or garbled is one ConfigError.

Only files are read, no objects of the simulator, so that a page can be made of results of any version and machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from dashboards.document_files import validated
from dashboards.documents import Arm, Comparison, Lock, Plan, Summary
from dashboards.memory_series import COLUMNS
from workloads.errors import ConfigError

Float64 = NDArray[np.float64]
Read = TypeVar("Read")
Section = TypeVar("Section", bound=BaseModel)

LOCK = "scenario.lock.yaml"
SUMMARY = "summary.json"
REQUESTS = "requests.parquet"
TIMELINE = "timeline.parquet"
LINKS = "links.parquet"
KV_ACCESS = "kv_access.parquet"
COMPARISON = "comparison.json"
PLAN = "plan.json"
ARMS = "arms"

REQUEST_NUMBERS = ("replica", "arrival_s", "ttft_s", "tpot_s", "e2el_s")
TIMELINE_NUMBERS = (
    "t_s",
    "replica",
    "running",
    "waiting",
    "kv_used_blocks",
    "prefill_tokens",
    "decode_seqs",
    "steps",
    "duration_s",
)


ACCESS_NUMBERS = ("group", "from_tokens", "page_reads")


@dataclass(frozen=True, eq=False)
class Rates:
    """Who moved how much over which link: numbers t_s, replica, bytes_per_s; names link, owner."""

    numbers: dict[str, Float64]
    names: dict[str, NDArray[np.str_]]


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory. Columns are float64, with NaN for null."""

    name: str
    directory: Path
    summary: Summary
    limits_ms: dict[str, float]
    lock_text: str
    requests: dict[str, Float64]
    timeline: dict[str, Float64]
    block_size: int = 16
    links: Rates | None = None
    kv_access: dict[str, Float64] | None = None

    @property
    def usable_blocks(self) -> int:
        """KV blocks of a replica that sequences can hold; the engine keeps one for itself."""
        return max(1, self.summary.sim.num_gpu_blocks - 1)

    @property
    def stages(self) -> dict[str, Float64]:
        """Seconds per request by stage."""
        return {
            name.removeprefix("stage_").removesuffix("_s"): column
            for name, column in self.requests.items()
            if name.startswith("stage_")
        }


def read_run(directory: Path, name: str | None = None) -> Run:
    """Read a run directory; `name` is what the page calls it, else the folder's own."""
    _check_directory(directory)
    lock = read_lock(directory)
    document = _json_object(directory / SUMMARY)
    document["metrics"] = numbers(document)
    limits = lock.scenario.slo.model_dump()
    return Run(
        name=name or directory.resolve().name,
        directory=directory,
        summary=_validated(Summary, document, directory / SUMMARY),
        limits_ms={key.removesuffix("_ms"): value for key, value in limits.items() if value is not None},
        lock_text=lock.text,
        requests=_columns(directory / REQUESTS, REQUEST_NUMBERS, prefix="stage_"),
        timeline=_columns(directory / TIMELINE, TIMELINE_NUMBERS, optional=COLUMNS),
        block_size=lock.scenario.engine.block_size,
        links=_rates(directory / LINKS),
        kv_access=_columns(directory / KV_ACCESS, ACCESS_NUMBERS)
        if (directory / KV_ACCESS).is_file()
        else None,
    )


def read_comparison(directory: Path) -> Comparison:
    """Read comparison.json."""
    path = directory / COMPARISON
    comparison = _validated(Comparison, _json_object(path), path)
    names = [arm.name for arm in comparison.arms]
    if not names:
        raise ConfigError(f"{path}: arms: is empty; a comparison has at least one")
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: arms: names must differ, not {', '.join(names)}")
    return comparison


def read_arm(directory: Path, arm: Arm) -> Run | None:
    """Read the run of an arm of a comparison; None where only metrics were kept."""
    folder = Path(arm.directory or f"{ARMS}/{arm.name}")
    if folder.is_absolute() or ".." in folder.parts:
        raise ConfigError(
            f"{directory / COMPARISON}: arms: directory {str(folder)!r} is not inside {directory}"
        )
    return read_run(directory / folder, arm.name) if (directory / ARMS).is_dir() else None


def read_lock(directory: Path) -> Lock:
    """Read scenario.lock.yaml."""
    path = directory / LOCK
    text = _text(path)
    return _validated(Lock, _yaml(path, text), path).model_copy(update={"text": text})


def read_plan(directory: Path) -> Plan:
    """Read plan.json."""
    return _validated(Plan, _json_object(directory / PLAN), directory / PLAN)


def numbers(document: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a mapping, by key."""
    return {
        key: float(value)
        for key, value in document.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    }


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; give one that `servetwin run --out` wrote")


def _read(path: Path, read: Callable[[], Read], problems: tuple[type[BaseException], ...]) -> Read:
    """Read a file, and say of every problem with it where it is."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a directory that a servetwin command wrote")
    caught: tuple[type[BaseException], ...] = (OSError, *problems)
    try:
        return read()
    except caught as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path}: cannot be read: {reason}") from error


def _text(path: Path) -> str:
    return _read(path, lambda: path.read_text(encoding="utf-8"), (UnicodeDecodeError,))


def _json_object(path: Path) -> dict[str, Any]:
    document = _read(path, lambda: json.loads(_text(path)), (ValueError, RecursionError))
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    return document


def _yaml(path: Path, text: str) -> Any:  # noqa: ANN401  whatever YAML holds
    import yaml  # noqa: PLC0415  only where a run is read

    return _read(path, lambda: yaml.safe_load(text), (yaml.YAMLError, ValueError, RecursionError))


def _validated(model: type[Section], document: Any, path: Path) -> Section:  # noqa: ANN401  whatever the file holds
    return validated(path, lambda: model.model_validate(document))


def _rates(path: Path) -> Rates | None:
    """Read links.parquet; None where a run had no transfers."""
    if not path.is_file():
        return None
    import pyarrow as pa  # noqa: PLC0415  only where a run is read
    import pyarrow.parquet as pq  # noqa: PLC0415

    def read() -> dict[str, NDArray[np.str_]]:
        table = pq.read_table(path, columns=["link", "owner"])
        return {
            name: table[name].to_numpy(zero_copy_only=False).astype(np.str_) for name in ("link", "owner")
        }

    names = _read(path, read, (pa.lib.ArrowException, KeyError, ValueError, TypeError))
    return Rates(_columns(path, ("t_s", "replica", "bytes_per_s")), names)


def _columns(
    path: Path, wanted: tuple[str, ...], prefix: str | None = None, optional: tuple[str, ...] = ()
) -> dict[str, Float64]:
    """The columns wanted, those of `optional` that are there, and those that begin with `prefix`; NaN for null."""
    import pyarrow as pa  # noqa: PLC0415  only where a run is read
    import pyarrow.parquet as pq  # noqa: PLC0415

    def read() -> dict[str, Float64]:
        names = pq.read_schema(path).names
        missing = [name for name in wanted if name not in names]
        if missing:
            raise ConfigError(f"{path}: has no column {', '.join(missing)}")
        also = [name for name in names if prefix is not None and name.startswith(prefix)]
        also += [name for name in optional if name in names]
        table = pq.read_table(path, columns=[*wanted, *also])
        return {name: table[name].to_numpy().astype(np.float64) for name in (*wanted, *also)}

    return _read(path, read, (pa.lib.ArrowException, ValueError, TypeError))
