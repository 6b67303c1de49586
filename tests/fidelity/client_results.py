"""A profile fitted to what one client measured, judged by what others did: `python -m tests.fidelity.client_results`.

The server is a real vLLM on two CPU cores, loaded by `vllm bench serve`, guidellm, AIPerf and inference-perf in turn.
The base profile is fitted to step logs of the same engine, recorded without a server around it. First the fit is to one
run and the others are judged; then each run is judged by a fit to the others. Beside the errors stands by what a run
and its repeat differ: the speed of the machine changes by that much, and no fit to one run can know that of another.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.serving.fit_overheads import ASKED
from calibration.serving.fit_results import ResultFit, fit_results
from calibration.serving.measured_run import MeasuredRun
from calibration.serving.readers.detect import read_runs
from sim.profile import Profile
from tests.fidelity import cpu_engine

CLIENTS: Final = cpu_engine.DATA.parent / "bench_clients"
FITTED: Final = "vllm_bench_serve/random_rate1.5"
REPEATED: Final = "vllm_bench_serve/random_rate1.5_rep2"


def service(clients: Path, profile: Path) -> dict[str, Any]:
    """What the server was started with (`server/startup_log.txt`)."""
    return {
        "model": str(clients / "server" / "model_files" / "config.json"),
        "hardware": {"profile": str(profile)},
        "engine": {
            "max_num_seqs": 32,
            "max_num_batched_tokens": 256,
            "max_model_len": 2048,
            "block_size": 32,
            "num_gpu_blocks_override": 2730,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "async_scheduling": False,
        },
    }


def measured_runs(clients: Path, base: Profile) -> dict[str, MeasuredRun]:
    """Runs that can be trusted, by the names of their folders."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.json"
        path.write_text(base.to_json(), encoding="utf-8")
        runs = read_runs(
            clients, service(clients, path), on_refused=lambda error: print(f"left out: {error}")
        )
    usable = [run for run in runs if all(part.apart is None for part in run.parts)]
    return {"/".join(Path(run.name).relative_to(clients).parts[:2]): run for run in usable}


def repeat_differs_by(runs: dict[str, MeasuredRun]) -> dict[str, float]:
    """The repeat over the run before it, minus 1, by metric."""
    first, again = (runs[name].parts[0].measured for name in (FITTED, REPEATED))
    return {metric: again[metric] / first[metric] - 1 for metric in ASKED}


def _table(title: str, found: ResultFit, clients: Path) -> str:
    lines = [title, f"{'':42}" + "".join(f"{metric:>18}" for metric in ASKED)]
    rows: dict[str, dict[str, str]] = {}
    for pair, before in zip(found.judged, found.before, strict=True):
        name = "/".join(Path(pair.run).relative_to(clients).parts[:2]) + (
            f", part {pair.part + 1}" if pair.part else ""
        )
        rows.setdefault(name, {})[pair.metric] = f"{pair.error:+.1%} ({before.error:+.1%})"
    lines += [f"{name:42}" + "".join(f"{row[metric]:>18}" for metric in ASKED) for name, row in rows.items()]
    means = [np.mean([abs(p.error or 0.0) for p in found.judged if p.metric == metric]) for metric in ASKED]
    base = [np.mean([abs(p.error or 0.0) for p in found.before if p.metric == metric]) for metric in ASKED]
    cells = (f"{f'{one:.1%} ({two:.1%})':>18}" for one, two in zip(means, base, strict=True))
    return "\n".join([*lines, f"{'mean of |error|':42}" + "".join(cells)])


def main(arguments: Sequence[str]) -> None:
    clients = Path(arguments[0]) if arguments else CLIENTS
    base = cpu_engine.calibrated(clients.parent / "vllm_cpu_engine")
    runs = measured_runs(clients, base)
    others = [run for name, run in runs.items() if name != FITTED]
    one = fit_results([runs[FITTED]], base, "server", others)
    print(_table(f"fitted to {FITTED}, in brackets by the base", one, clients))
    rest = fit_results(list(runs.values()), base, "server")
    print(_table("fitted to the other runs", rest, clients))
    said = ", ".join(f"{metric} {value:+.1%}" for metric, value in repeat_differs_by(runs).items())
    print(f"{REPEATED} over {FITTED}: {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
