"""What 32,000 recorded requests say of a step and of the way to it: `python tests/fidelity/h100_requests.py`.

Llama-2-7B on H100, vLLM 0.15.1 (`vllm_h100_perrequest`), the runs that are not overloaded. Nothing is simulated. Two
regressions, each also without each experiment in turn and judged on it:

    time per token of a request = step + per KV token x KV tokens of the batch + per prompt x prompts that joined
    TTFT - 2.5 steps - own prompt = latency + per stream x sequences that run when it comes

The first is over the time in which the request decodes, the second at its arrival. 2.5 steps: what is left of the
step that runs, half of one on average, the step that is planned already (async scheduling), and the request's own.
Stages weigh alike. Prompts of the first turn through the prompts are left out: nothing of them is in the cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.readers import per_request
from calibration.serving.readers.shared_prefix import PROMPTS
from calibration.serving.readers.tables import read_rows
from tests.data import ROOT
from workloads.errors import InputError

Float = NDArray[np.float64]

FIRST_TURN: Final = 2 * PROMPTS  # requests of a stage that are left out
STALL_MS: Final = 30.0  # a TTFT further off than this is a stall of something else


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage, one entry a request; times in milliseconds.

    kv_tokens, prompts   of the batch, while the request decodes: the mean; and how many joined, per step
    kv_then, running     when it comes
    rate_per_ms          of arrivals
    """

    experiment: str
    name: str
    tpot: Float
    kv_tokens: Float
    prompts: Float
    ttft: Float
    kv_then: Float
    running: Float
    rate_per_ms: float


def stages_of(run: MeasuredRun, folder: Path) -> list[Stage]:
    """Rebuild from the requests' own times what the engine held at any time."""
    assert run.workload is not None
    trace, gaps = run.workload.trace, float(run.labels["output_tokens"]) - 1
    rows = read_rows(folder / "requests" / f"{run.name}.csv.gz")
    arrival = trace.arrival_ns / 1e6
    ttft, e2e = (1e3 * np.array([float(row[name]) for row in rows]) for name in ("ttft_s", "e2e_s"))
    begins, ends, tpot = arrival + ttft, arrival + e2e, (e2e - ttft) / gaps
    running, kv_tokens = _timeline(
        begins, ends, trace.input_tokens.astype(np.float64) + 1, (1.0 / tpot).astype(np.float64)
    )
    first, last, came = begins.astype(int), ends.astype(int), arrival.astype(int)
    held = np.concatenate([[0.0], np.cumsum(kv_tokens)])
    joined = np.searchsorted(np.sort(begins), ends) - np.searchsorted(np.sort(begins), begins, side="right")
    found = []
    for part in run.parts:
        assert part.counted is not None
        chosen = np.flatnonzero(part.counted)[FIRST_TURN:]
        found.append(
            Stage(
                run.name,
                f"{run.labels['workload']} {part.labels['request_rate']:g}/s",
                tpot[chosen],
                ((held[last] - held[first]) / (last - first))[chosen],
                joined[chosen] / gaps,
                ttft[chosen],
                kv_tokens[came[chosen]],
                running[came[chosen]],
                float(part.labels["request_rate"]) / 1e3,
            )
        )
    return found


def _timeline(begins: Float, ends: Float, at_first: Float, per_ms: Float) -> tuple[Float, Float]:
    """Sequences that decode, and their KV tokens, in each millisecond; a sequence grows by `per_ms`."""
    size = int(ends.max()) + 2
    count, slope, offset = np.zeros(size), np.zeros(size), np.zeros(size)
    for when, sign in ((begins, 1.0), (ends, -1.0)):
        at = when.astype(int)
        np.add.at(count, at, sign)
        np.add.at(slope, at, sign * per_ms)
        np.add.at(offset, at, sign * (at_first - begins * per_ms))
    middle = np.arange(size) + 0.5
    return np.cumsum(count), np.cumsum(offset) + np.cumsum(slope) * middle


def step_law(stages: Sequence[Stage]) -> Float:
    """Step [ms], per 1,000 KV tokens [ms], per prompt that joins [ms]."""
    columns = [np.column_stack([np.ones_like(one.tpot), one.kv_tokens / 1e3, one.prompts]) for one in stages]
    return _fit(columns, [one.tpot for one in stages])


def waits(stage: Stage, law: Float) -> Float:
    """What is left of TTFT once the engine's steps are taken off [ms]; prompts join steps as they come."""
    step = law[0] + law[1] * stage.kv_then / 1e3
    prompt = law[2] * (1.0 + 1.5 * stage.rate_per_ms * step)
    return stage.ttft - 2.5 * step - prompt


def way_law(stages: Sequence[Stage], law: Float) -> Float:
    """Latency [ms], per running sequence [ms]."""
    columns, values = [], []
    for one in stages:
        left = waits(one, law)
        kept = np.abs(left - np.median(left)) < STALL_MS
        columns.append(np.column_stack([np.ones(kept.sum()), one.running[kept]]))
        values.append(left[kept])
    return _fit(columns, values)


def _fit(columns: Sequence[Float], values: Sequence[Float]) -> Float:
    """Least squares in which every stage weighs alike."""
    weights = [1.0 / np.sqrt(one.size) for one in values]
    matrix = np.concatenate([w * one for w, one in zip(weights, columns, strict=True)])
    wanted = np.concatenate([w * one for w, one in zip(weights, values, strict=True)])
    solution: Float = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    return solution


def report(stages: Sequence[Stage]) -> str:
    law = step_law(stages)
    way = way_law(stages, law)
    lines = [
        f"step = {law[0]:.2f} ms + {law[1]:.4f} ms per 1,000 KV tokens + {law[2]:.2f} ms per prompt that joins",
        f"TTFT = 2.5 steps + own prompt + {way[0]:.2f} ms + {way[1]:.4f} ms per running sequence",
        "",
        "stage           requests  running   TPOT  by the others   TTFT  by the others",
    ]
    for one in stages:
        others = [other for other in stages if other.experiment != one.experiment]
        law = step_law(others)
        way = way_law(others, law)
        tpot = (law[0] + law[1] * one.kv_tokens / 1e3 + law[2] * one.prompts).mean()
        ttft = (one.ttft - waits(one, law) + way[0] + way[1] * one.running).mean()
        lines.append(
            f"{one.name:15} {one.tpot.size:8,} {one.running.mean():8.1f} {one.tpot.mean():6.2f} {tpot:14.2f} "
            f"{one.ttft.mean():6.2f} {ttft:14.2f}"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT, help="folder of measured data")
    folder = parser.parse_args(argv).data / "vllm_h100_perrequest"
    try:
        runs = per_request.read(folder / "experiments.csv")
        calm = [run for run in runs if run.parts and all(part.apart is None for part in run.parts)]
        print(report([stage for run in calm for stage in stages_of(run, folder)]))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
