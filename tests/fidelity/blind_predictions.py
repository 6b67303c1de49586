"""Predictions of measured runs whose results are not known here: `python tests/fidelity/blind_predictions.py`.

Inputs: `vllm_h100_perrequest/blind_inputs_only.csv`, `vllm_multi_gpu_aggregates/eval_inputs_only.csv` and the runs
without results of `real_runs_llmservingsim`. Output: one row for each run (`stage` empty) and for each of its stages
where it has several, with the profile's hash and what was assumed. The same code, profiles and data give the same
bytes. Nothing that was measured on these runs is read.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from calibration.serving.measured_run import METRICS, MeasuredRun, Part
from calibration.serving.predict import metrics_of
from calibration.serving.readers import aggregates, llmservingsim, per_request
from sim.service import build_service
from sim.simulation import simulate
from tests.data import ROOT
from workloads.errors import InputError

OUT: Final = Path(__file__).with_name("blind_predictions.csv")
PATIENCE_S: Final = 300
"""After which inference-perf's client gives a request up (its HTTP library's default); failed requests of the one
overloaded run whose requests are recorded all ended between 300.0 and 301.0 s. The engine went on with them: nobody
who came later was served in time."""
GIVEN_UP: Final = f"latencies are of the requests that end within {PATIENCE_S} s"
LABELS: Final = ("data", "system", "model", "tensor_parallel_size")
COUNTS: Final = ("requests", "refused", "given_up")
COLUMNS: Final = (*LABELS, "run", "stage", *COUNTS, *METRICS, "profile", "profile_hash", "assumed")

Row = dict[str, object]


def blind_runs(data: Path) -> list[MeasuredRun]:
    """The runs, each with a part for the whole and one for each stage; nothing of them is measured."""
    experiments = [
        *per_request.experiments(data / "vllm_h100_perrequest" / "blind_inputs_only.csv"),
        *aggregates.experiments(data / "vllm_multi_gpu_aggregates" / "eval_inputs_only.csv"),
    ]
    runs = [
        replace(
            experiment.run((Part({}), *(experiment.stages() if len(experiment.load.stages) > 1 else ()))),
            caveats=(*experiment.caveats, GIVEN_UP),
        )
        for experiment in experiments
    ]
    recorded = llmservingsim.read(data / "real_runs_llmservingsim")
    return runs + [replace(run, parts=(Part({}),)) for run in recorded if not run.parts]


def rows_of(run: MeasuredRun) -> Iterator[Row]:
    """Simulate the run, and say what comes of each of its parts."""
    service = build_service(run.scenario)
    requests = simulate(run.scenario, service, run.workload).requests
    done = requests.completed
    in_time = done.copy()
    if GIVEN_UP in run.caveats:
        in_time[done] = requests.e2el_ns <= PATIENCE_S * 1_000_000_000
    for part in run.parts:
        counted = np.ones_like(done) if part.counted is None else part.counted
        predicted = metrics_of(requests, counted & in_time)
        yield {
            **{label: run.labels.get(label, "") for label in LABELS},
            "run": run.name,
            "stage": part.labels.get("stage", ""),
            "requests": int(counted.sum()),
            "refused": int((counted & ~done).sum()),
            "given_up": int((counted & done & ~in_time).sum()),
            **{metric: f"{predicted[metric]:.6g}" for metric in METRICS if metric in predicted},
            "profile": service.profile.name,
            "profile_hash": service.profile.content_hash,
            "assumed": "; ".join(run.caveats),
        }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT, help="folder of measured data")
    parser.add_argument("--out", type=Path, default=OUT, help="table to write")
    arguments = parser.parse_args(argv)
    try:
        rows = [row for run in blind_runs(arguments.data) for row in rows_of(run)]
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows to {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
