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
from calibration.serving.readers.tables import Row, above_zero, has_columns, read_rows, whole
from sim.metrics import latency_statistics
from workloads.build import Workload
from workloads.errors import InputError
from workloads.trace import NS_PER_S, Int64, Trace

_COLUMNS: Final = ("experiment", "stage", "kv_blocks_total_gpu", "output_len_requested", "send_duration_s")
_READ: Final = (
    *_COLUMNS,
    *("model", "hardware", "tp", "precision", "workload", "rate_rps", "duration_s"),
    *("system_prompt_len", "prompt_len_mean", "max_num_batched_tokens", "max_num_seqs", "max_model_len"),
)
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
    for row in read_rows(path, _READ):
        stages = by_name.setdefault(row["experiment"], [])
        if whole(row, "stage", f"{path}: {row['experiment']}", least=-1) >= 0:
            stages.append(row)
    found = []
    for name, rows in by_name.items():
        if not rows:
            raise InputError(f"{path}: {name}: no row of a stage")
        stages = sorted(rows, key=lambda row: int(row["stage"]))
        requests = path.parent / "requests" / f"{name}.csv.gz"
        known = requests.is_file()
        experiment = _experiment(name, stages, f"{path}: {name}", recorded=known)
        found.append((experiment, stages, requests if known else None))
    return found


def _experiment(name: str, stages: list[Row], where: str, *, recorded: bool) -> Experiment:
    first = stages[0]
    load = SharedPrefixLoad(
        stages=tuple(
            Stage.of(above_zero(row, "rate_rps", where), above_zero(row, "duration_s", where), where)
            for row in stages
        ),
        system_tokens=whole(first, "system_prompt_len", where),
        input_tokens=round(above_zero(first, "prompt_len_mean", where)),
        output_tokens=whole(first, "output_len_requested", where, least=2),
    )
    drawn = () if recorded else ("times of arrival are drawn: a Poisson process", "prompts of one length")
    return Experiment(
        name=name,
        data="vllm_h100_perrequest",
        model=first["model"],
        gpu=gpu_of(first["hardware"], where),
        tensor_parallel_size=whole(first, "tp", where),
        precision=precision_of(first["precision"], where),
        workload=first["workload"],
        load=load,
        max_num_batched_tokens=whole(first, "max_num_batched_tokens", where),
        max_num_seqs=whole(first, "max_num_seqs", where),
        max_model_len=whole(first, "max_model_len", where),
        num_gpu_blocks=whole(first, "kv_blocks_total_gpu", where),
        caveats=_CAVEATS + drawn,
    )


def _measured(experiment: Experiment, path: Path, stages: list[Row]) -> MeasuredRun:
    rows = read_rows(path, _REQUEST_COLUMNS)
    if len(rows) != experiment.load.requests:
        raise InputError(
            f"{path}: {len(rows)} requests, and the experiment's stages sent {experiment.load.requests}"
        )
    places = [f"{path}: row {number}" for number in range(1, len(rows) + 1)]

    def counts(column: str) -> Int64:
        return np.array([whole(row, column, where, least=0) for row, where in zip(rows, places, strict=True)])

    def seconds(column: str, *, none: NDArray[np.bool_]) -> NDArray[np.float64]:
        found = zip(rows, places, none.tolist(), strict=True)
        return np.array([np.nan if no else above_zero(row, column, where) for row, where, no in found])

    failed = counts("has_error") == 1
    arrival_us, prompt = counts("arrival_time_us"), counts("prompt_id_approx")
    lengths = _prompt_lengths(counts("input_tokens"), prompt, failed)
    ttft_s, e2e_s = seconds("ttft_s", none=failed), seconds("e2e_s", none=failed)
    output_tokens = experiment.load.output_tokens
    trace = Trace.build(
        arrival_us * 1000,
        lengths,
        np.full(len(rows), output_tokens),
        hashes=prompt_hashes(prompt, lengths, experiment.load.system_tokens),
        source=path.name,
    )
    where = f"{path}: stages of {experiment.name}"
    parts = [
        Part(
            _latencies(ttft_s[mask], e2e_s[mask], output_tokens),
            mask,
            stage.labels,
            apart=OVERLOADED if whole(row, "overloaded_in_source", where, least=0) else None,
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
