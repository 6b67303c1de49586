"""A real vLLM on a CPU, predicted from its calibration runs alone: `python -m tests.fidelity.cpu_engine [DATA]`.

The profile is fitted to the steps of `calib_*` (`servetwin profile fit --engine-log`); no figure of the other runs
enters. That products run over blocks of 6 rows is known from their library; it was looked for because the other runs
show it. Beside each error stands the spread between the two runs of the data that had equal inputs, and what the error
would be if the speed of the machine in that run had been known: `drift.json`, which is fitted to all runs, the
calibration runs included, so that this figure is no prediction.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from calibration.engine_log import read_engine_log
from calibration.engine_log_errors import errors_on
from calibration.fit_engine_log import fit_engine_log
from calibration.serving.measured_run import METRICS, MeasuredRun
from calibration.serving.predict import predict
from calibration.serving.readers import cpu_engine
from calibration.slower_curves import slower_decode, slower_elementwise, slower_gemm, slower_prefill
from sim.profile import HostOverhead, Profile

DATA: Final = Path(__file__).parents[3] / "shared" / "data" / "vllm_cpu_engine"
UNNAMED: Final = Path("fitted-to-calib.json")
"""What scenarios name as their profile, which is given to each prediction instead."""
SHOWN: Final = tuple(name for name in METRICS if "p95" not in name)


def calibrated(data: Path) -> Profile:
    return fit_engine_log(read_engine_log(cpu_engine.calibration_logs(data)), "vllm_cpu")


def measured_runs(data: Path) -> list[MeasuredRun]:
    """Runs whose results are known."""
    return [run for run in cpu_engine.read(data, UNNAMED) if run.parts]


def errors(run: MeasuredRun, profile: Profile) -> dict[str, float]:
    """Predicted / measured - 1, by metric."""
    (predicted,), (part,) = predict(run, profile).parts, run.parts
    return {metric: predicted[metric] / value - 1 for metric, value in part.measured.items()}


def spread(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """|log(a / b)| of two runs with equal inputs, by metric: the greatest of all such pairs."""
    found: dict[str, float] = {}
    for one, other in combinations(runs, 2):
        if one.scenario.engine != other.scenario.engine or not _equal_loads(one, other):
            continue
        for metric, value in one.parts[0].measured.items():
            apart = abs(float(np.log(value / other.parts[0].measured[metric])))
            found[metric] = max(found.get(metric, 0.0), apart)
    return found


def _equal_loads(one: MeasuredRun, other: MeasuredRun) -> bool:
    a, b = one.workload.trace, other.workload.trace
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("arrival_ns", "input_tokens", "output_tokens")
    )


def step_spread(data: Path) -> tuple[float, float]:
    """Median and P90 of |b / a - 1| of the same step in two runs: the sweeps of the calibration, each done twice."""
    runs = {run.run: run.duration_s for run in read_engine_log(cpu_engine.calibration_logs(data)).runs}
    apart = np.concatenate(
        [np.abs(runs[f"{name}_rep2"] / runs[name] - 1) for name in ("calib_prefill", "calib_decode")]
    )
    return float(np.median(apart)), float(np.quantile(apart, 0.9))


def speeds(data: Path) -> dict[str, float]:
    """How much slower than the calibration each run went, by the data's own estimate."""
    runs = json.loads((data / "drift.json").read_text())["runs"]
    ratio: Mapping[str, float] = {name: run["speed_ratio"] for name, run in runs.items()}
    calibration = np.mean([ratio[folder.name] for folder in cpu_engine.calibration_logs(data)])
    return {name: float(value / calibration) for name, value in ratio.items()}


def slower(profile: Profile, factor: float) -> Profile:
    """Let every step take so many times as long."""
    host = profile.host
    times = {name: factor * getattr(host, name) for name in HostOverhead.model_fields if name.endswith("_s")}
    return profile.model_copy(
        update={
            "gemm": {dtype: slower_gemm(curve, factor) for dtype, curve in profile.gemm.items()},
            "decode_attention": {d: slower_decode(c, factor) for d, c in profile.decode_attention.items()},
            "prefill_attention": {d: slower_prefill(c, factor) for d, c in profile.prefill_attention.items()},
            "elementwise": slower_elementwise(profile.elementwise, factor),
            "host": host.model_copy(update=times),
        }
    )


def main(data: Path) -> None:
    profile, runs, speed = calibrated(data), measured_runs(data), speeds(data)
    between = spread(runs)
    print(f"profile {profile.content_hash[:12]}, fitted to the steps of calib_* alone\n")
    print(f"{'steps':<24} {'median':>8} {'P90':>8} {'in all':>8}")
    logs = read_engine_log([data / run.name for run in runs])
    for error in errors_on(profile, logs):
        print(f"{error.run:<24} {error.median:>8.1%} {error.p90:>8.1%} {error.total:>+8.1%}")
    print("{:<24} {:>8.1%} {:>8.1%}\n".format("the same step, twice", *step_spread(data)))
    heads = ("predicted", "measured", "error", "spread", "at its speed")
    print(f"{'run':<24} {'metric':<18}", *(f"{head:>12}" for head in heads))
    for run in runs:
        found, corrected = errors(run, profile), errors(run, slower(profile, speed[run.name]))
        for metric in SHOWN:
            value = run.parts[0].measured[metric]
            print(
                f"{run.name:<24} {metric:<18} {value * (1 + found[metric]):>12.4g} {value:>12.4g} "
                f"{found[metric]:>+12.1%} {between[metric]:>12.1%} {corrected[metric]:>+12.1%}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
