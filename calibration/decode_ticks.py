"""Pure decode as a served run shows it: seconds of its log in which no prompt was computed.

In such a tick every step decodes all running sequences, so a step took `running / tokens per second`. The
log counts the running sequences at the end of the tick; the mean of two ends stands for the tick. Contexts
are worked out from the requests: a request holds its input and what it has generated, evenly from first to
last token.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from workloads.errors import InputError

_LEAST_SEQUENCES = 8  # fewer, and the mean of two ends no longer stands for the tick


@dataclass(frozen=True, slots=True)
class DecodeTick:
    """One second of pure decode: sequences, their summed context [tokens], seconds a step."""

    num_seqs: int
    context_tokens: int
    step_s: float


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """The ticks of one run, and the engine's limits."""

    model: str
    engine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    ticks: tuple[DecodeTick, ...]


def read_decode_run(folder: Path) -> DecodeRun:
    """Read `engine.json`, `timeseries.csv` and `measured_requests.csv` of a run."""
    try:
        engine = json.loads((folder / "engine.json").read_text())
        limits = engine["engine_kwargs"]
        with (folder / "timeseries.csv").open(newline="") as file:
            series = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        with (folder / "measured_requests.csv").open(newline="") as file:
            requests = list(csv.DictReader(file))
        return DecodeRun(
            model=engine["model"],
            engine=f"vLLM {engine['vllm_version']}",
            max_num_seqs=limits["max_num_seqs"],
            max_num_batched_tokens=limits["max_num_batched_tokens"],
            ticks=tuple(_ticks(series, requests)),
        )
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error
    except (KeyError, ValueError) as error:
        raise InputError(f"{folder}: not a recorded run ({error!r})") from error


def _ticks(series: list[dict[str, float]], requests: list[dict[str, str]]) -> list[DecodeTick]:
    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([float(row[name]) for row in requests])

    inputs, outputs = column("input_tokens"), column("output_tokens")
    first, last = column("first_token_s"), column("last_token_s")
    ticks = []
    for before, tick in pairwise(series):
        running = (before["running"] + tick["running"]) / 2
        if tick["prompt_throughput"] or running < _LEAST_SEQUENCES:
            continue
        middle = (before["t"] + tick["t"]) / 2
        alive = (first <= middle) & (middle < last)
        held = inputs + (outputs - 1) * (middle - first) / np.maximum(last - first, 1e-9)
        mean = float(held[alive].mean())
        ticks.append(DecodeTick(round(running), round(running * mean), running / tick["gen_throughput"]))
    return ticks
