"""Recorded runs of a real engine: one row per engine step, beside the requests that it served.

A run directory holds `meta.json` (engine arguments, KV blocks), `requests.csv` (arrivals and lengths) and `steps.csv`
(when each step began, and what was in it).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from workloads.errors import ConfigError, TraceFormatError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as the engine got it; times in seconds since the start of the run."""

    request_id: str
    arrival_s: float
    admit_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    system_prompt: str = ""
    parent: str = ""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What a real engine did in one step. `prefill_detail` is (request, computed before, new tokens) each."""

    start_s: float
    duration_s: float
    prefill_tokens: int
    decode_seqs: int
    decode_context_tokens: int
    preempted: int
    running: int
    waiting: int
    kv_usage: float
    prefill_detail: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class StepLogRun:
    """A recorded run. `num_gpu_blocks` counts the engine's own null block, as the engine does."""

    name: str
    engine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_gpu_blocks: int
    prefix_caching: bool
    requests: tuple[RecordedRequest, ...]
    steps: tuple[RecordedStep, ...]


def read_step_log(directory: Path) -> StepLogRun:
    """Read a run directory; raises InputError where it is not one, or where the engine ran what we cannot replay."""
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; give a recorded run with meta.json and steps.csv")
    requests = tuple(_rows(directory / "requests.csv", _request))
    steps = tuple(_rows(directory / "steps.csv", _step))
    meta_path = directory / "meta.json"
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        args: dict[str, Any] = meta["engine_args"]
        return StepLogRun(
            name=str(meta.get("run", directory.name)),
            engine=f"{meta.get('engine', 'engine')} {meta.get('version', '')}".strip(),
            max_num_seqs=int(args["max_num_seqs"]),
            max_num_batched_tokens=int(args["max_num_batched_tokens"]),
            max_model_len=int(args["max_model_len"]),
            block_size=int(meta["block_size"]),
            num_gpu_blocks=int(meta["num_kv_blocks"]),
            prefix_caching=bool(args.get("enable_prefix_caching", True)),  # the engine's own default
            requests=requests,
            steps=steps,
        )
    except OSError as error:
        raise ConfigError(f"{meta_path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{meta_path}:{error.lineno}: not JSON: {error.msg}") from None
    except KeyError as error:
        raise ConfigError(f"{meta_path}: key {error.args[0]!r} is missing") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{meta_path}: not text in UTF-8") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ConfigError(f"{meta_path}: not the meta data of a run: {error}") from None


def _rows(path: Path, convert: Callable[[Mapping[str, str]], T]) -> list[T]:
    rows = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                try:
                    rows.append(convert(row))
                except KeyError as error:
                    raise TraceFormatError(path, 1, f"column {error.args[0]!r} is missing") from None
                except (TypeError, ValueError, AttributeError) as error:
                    raise TraceFormatError(path, line, f"not a row of this table: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceFormatError(path, None, f"not a CSV file in UTF-8 ({error})") from None
    if not rows:
        raise TraceFormatError(path, None, "has no rows")
    return rows


def _seconds(row: Mapping[str, str], column: str) -> float:
    return _number(row, column, 1e9)


def _number(row: Mapping[str, str], column: str, most: float) -> float:
    value = float(row[column])
    if not math.isfinite(value) or not 0 <= value <= most:
        raise ValueError(f"{column} is {row[column]}, must lie between 0 and {most:g}")
    return value


def _count(row: Mapping[str, str], column: str, least: int = 0) -> int:
    value = int(row[column])
    if not least <= value < 2**31:
        raise ValueError(f"{column} is {value}, must be at least {least} and below 2^31")
    return value


def _request(row: Mapping[str, str]) -> RecordedRequest:
    return RecordedRequest(
        row["request_id"],
        _seconds(row, "arrival_s"),
        _seconds(row, "admit_s"),
        _count(row, "prompt_tokens", 1),
        _count(row, "output_tokens", 1),
        _count(row, "cached_tokens") if row.get("cached_tokens") else None,
        row.get("sys_id") or "",
        row.get("parent") or "",
    )


def _step(row: Mapping[str, str]) -> RecordedStep:
    return RecordedStep(
        _seconds(row, "t_start_s"),
        _seconds(row, "iter_s"),
        _count(row, "n_prefill_tokens"),
        _count(row, "n_decode_seqs"),
        _count(row, "decode_ctx_tokens"),
        _count(row, "n_preempted"),
        _count(row, "n_running"),
        _count(row, "n_waiting"),
        _number(row, "kv_usage", 1.0),
        tuple(_prefill(part) for part in row["prefill_detail"].split(";") if part),
    )


def _prefill(part: str) -> tuple[str, int, int]:
    request, counts = part.rsplit(":", 1)
    before, new = counts.split("+")
    return request, int(before), int(new)
