"""Runs of vLLM 0.15.1 with every request recorded (`vllm_h100_perrequest`): one run an experiment, one part a stage.

Exact times of arrival and prompt lengths; each request generated what was asked for (the reported length is of the
text tokenised anew). Latencies are the client's, taken from the requests. Token gaps of the source count about two
events a token and are never read: TPOT is (E2E - TTFT) / (tokens - 1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.serving.measured_run import METRICS, MeasuredRun, Part
from calibration.serving.readers.experiment import Experiment, gpu_of, precision_of
from calibration.serving.readers.shared_prefix import SharedPrefixLoad, Stage, prompt_hashes
from calibration.serving.readers.tables import Row, has_columns, read_rows
from sim.metrics import latency_statistics
from workloads.build import Workload
from workloads.errors import InputError
from workloads.trace import NS_PER_S, Int64, Trace

_COLUMNS: Final = ("experiment", "stage", "kv_blocks_total_gpu", "output_len_requested", "send_duration_s")
_REQUEST_COLUMNS: Final = (
    "arrival_time_us",
    "input_tokens",
    "has_error",
    "ttft_s",
    "e2e_s",
    "prompt_id_approx",
)
OVERLOADED: Final = "overloaded: most requests were given up after 300 s, and latencies are of the others"
_CAVEATS: Final = (
    "whether blocks were found in the prefix cache is not logged: the engine's default (on) is assumed",
    "which prompts share a system prompt is not recorded",
)


def recognises(path: Path) -> bool:
    """Tell whether this is such a table of experiments."""
    return has_columns(path, _COLUMNS)


def read(path: Path) -> list[MeasuredRun]:
    """Read the runs; those without a file of requests beside the table are inputs only, with parts=()."""
    return [
        experiment.run() if requests is None else _measured(experiment, requests, stages)
        for experiment, stages, requests in _entries(path)
    ]


def experiments(path: Path) -> list[Experiment]:
    """Read what was set, and nothing that was measured."""
    return [experiment for experiment, _, _ in _entries(path)]


def _entries(path: Path) -> list[tuple[Experiment, list[Row], Path | None]]:
    by_name: dict[str, list[Row]] = {}
    for row in read_rows(path, _COLUMNS):
        by_name.setdefault(row["experiment"], []).append(row)
    found = []
    for name, rows in by_name.items():
        stages = sorted((row for row in rows if int(row["stage"]) >= 0), key=lambda row: int(row["stage"]))
        requests = path.parent / "requests" / f"{name}.csv.gz"
        known = requests.is_file()
        try:
            experiment = _experiment(name, stages, f"{path}: {name}", recorded=known)
        except (KeyError, ValueError) as error:
            raise InputError(f"{path}: {name}: not an experiment's row ({error!r})") from error
        found.append((experiment, stages, requests if known else None))
    return found


def _experiment(name: str, stages: list[Row], where: str, *, recorded: bool) -> Experiment:
    first = stages[0]
    load = SharedPrefixLoad(
        stages=tuple(Stage(float(row["rate_rps"]), float(row["duration_s"])) for row in stages),
        system_tokens=int(first["system_prompt_len"]),
        input_tokens=round(float(first["prompt_len_mean"])),
        output_tokens=int(first["output_len_requested"]),
    )
    drawn = () if recorded else ("times of arrival are drawn: a Poisson process", "prompts of one length")
    return Experiment(
        name=name,
        data="vllm_h100_perrequest",
        model=first["model"],
        gpu=gpu_of(first["hardware"], where),
        tensor_parallel_size=int(first["tp"]),
        precision=precision_of(first["precision"], where),
        workload=first["workload"],
        load=load,
        max_num_batched_tokens=int(first["max_num_batched_tokens"]),
        max_num_seqs=int(first["max_num_seqs"]),
        max_model_len=int(first["max_model_len"]),
        num_gpu_blocks=int(first["kv_blocks_total_gpu"]),
        caveats=_CAVEATS + drawn,
    )


def _measured(experiment: Experiment, path: Path, stages: list[Row]) -> MeasuredRun:
    rows = read_rows(path, _REQUEST_COLUMNS)
    if len(rows) != experiment.load.requests:
        raise InputError(
            f"{path}: {len(rows)} requests, and the experiment's stages sent {experiment.load.requests}"
        )
    try:
        arrival_us = np.array([int(row["arrival_time_us"]) for row in rows])
        prompt = np.array([int(row["prompt_id_approx"]) for row in rows])
        failed = np.array([row["has_error"] == "1" for row in rows])
        lengths = _prompt_lengths(np.array([int(row["input_tokens"]) for row in rows]), prompt, failed)
        ttft_s = np.array([np.nan if row["has_error"] == "1" else float(row["ttft_s"]) for row in rows])
        e2e_s = np.array([float(row["e2e_s"]) for row in rows])
    except ValueError as error:
        raise InputError(f"{path}: not a table of requests ({error})") from error
    output_tokens = experiment.load.output_tokens
    trace = Trace.build(
        arrival_us * 1000,
        lengths,
        np.full(len(rows), output_tokens),
        hashes=prompt_hashes(prompt, lengths, experiment.load.system_tokens),
        source=path.name,
    )
    parts = [
        Part(
            _latencies(ttft_s[mask], e2e_s[mask], output_tokens),
            mask,
            stage.labels,
            apart=OVERLOADED if row["overloaded_in_source"] == "1" else None,
        )
        for stage, row in zip(experiment.stages(), stages, strict=True)
        for mask in [stage.counted & ~failed]
    ]
    return experiment.run(parts, Workload(trace))


def _prompt_lengths(lengths: Int64, prompt: Int64, failed: NDArray[np.bool_]) -> Int64:
    """Lengths of all prompts: what a failed request leaves out, others with the same prompt say."""
    known = dict(zip(prompt[~failed].tolist(), lengths[~failed].tolist(), strict=True))
    return np.where(failed, [known.get(number, 0) for number in prompt.tolist()], lengths)


def _latencies(ttft_s: NDArray[np.float64], e2e_s: NDArray[np.float64], tokens: int) -> dict[str, float]:
    columns = {"ttft": ttft_s, "tpot": (e2e_s - ttft_s) / (tokens - 1), "e2el": e2e_s}
    return {
        key: value
        for name, seconds in columns.items()
        for key, value in latency_statistics(name, seconds * NS_PER_S).items()
        if key in METRICS and value is not None
    }
