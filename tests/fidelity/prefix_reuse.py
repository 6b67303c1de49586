"""Recorded H100 runs with and without a prefix cache: `python tests/fidelity/prefix_reuse.py`.

The runs (`vllm_h100_perrequest`) send the same hundred prompts over and over, and whether the engine found them in its
cache is not logged. Printed: errors of what the shipped profile says of each stage, both ways.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from calibration.serving.measured_run import MeasuredRun
from calibration.serving.predict import predict_all
from calibration.serving.readers import per_request
from tests.data import ROOT
from workloads.errors import InputError

METRICS: Final = (
    "mean_ttft_ms",
    "median_ttft_ms",
    "mean_tpot_ms",
    "mean_e2el_ms",
    "p90_e2el_ms",
    "p99_e2el_ms",
)


def without_reuse(run: MeasuredRun) -> MeasuredRun:
    engine = run.scenario.engine.model_copy(update={"enable_prefix_caching": False})
    return replace(run, scenario=run.scenario.model_copy(update={"engine": engine}))


def lines(runs: list[MeasuredRun]) -> Iterator[str]:
    yield f"{'stage':22} {'reuse':5} " + " ".join(f"{name.removesuffix('_ms'):>12}" for name in METRICS)
    both = [variant for run in runs for variant in (run, without_reuse(run))]
    for prediction in predict_all(both):
        run = prediction.run
        reuse = "yes" if run.scenario.engine.enable_prefix_caching else "no"
        for part, said in zip(run.parts, prediction.parts, strict=True):
            name = f"{run.labels['workload']} {part.labels['request_rate']:g}/s{' *' if part.apart else ''}"
            errors = (f"{said[metric] / part.measured[metric] - 1:+12.1%}" for metric in METRICS)
            yield f"{name:22} {reuse:5} {' '.join(errors)}"
    yield f"* {per_request.OVERLOADED}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT, help="folder of measured data")
    try:
        runs = per_request.read(parser.parse_args(argv).data / "vllm_h100_perrequest" / "experiments.csv")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for line in lines([run for run in runs if run.parts]):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
