"""Means and tails of vLLM 0.15.1 runs on several GPUs (`vllm_multi_gpu_aggregates`): one part a stage.

Times of arrival, prompt lengths and KV blocks are not recorded: arrivals are drawn, prompts are as long as the
settings ask for (and what becomes of them when they are tokenised anew). The source's time between tokens divides
by lengths tokenised anew and is not read: mean TPOT is (mean E2E - mean TTFT) / (tokens - 1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.readers.experiment import Experiment, gpu_of, precision_of
from calibration.serving.readers.shared_prefix import RETOKENISED, SharedPrefixLoad, Stage
from calibration.serving.readers.tables import Row, has_columns, read_rows
from workloads.errors import InputError

_COLUMNS: Final = ("experiment", "exp_id", "stage", "stage_rates_rps", "stage_durations_s", "workload_source")
_MEASURED: Final = {
    f"{statistic}_{name}_ms": f"actual_{source}_{statistic}_ms"
    for name, source in (("ttft", "ttft"), ("e2el", "e2e"))
    for statistic in ("mean", "p90", "p99")
}
_CAVEATS: Final = (
    "times of arrival are drawn: a Poisson process",
    "prompts of one length, 4.5% longer than asked for, as recorded elsewhere on this rig",
    "max_num_seqs is not recorded: 128, as elsewhere on this rig",
    "KV blocks by the arithmetic of sim/memory.py",
    "whether blocks were found in the prefix cache is not logged: the engine's default (on) is assumed",
)


def recognises(path: Path) -> bool:
    """Tell whether this is such a table of experiments."""
    return has_columns(path, _COLUMNS)


def read(path: Path) -> list[MeasuredRun]:
    """Read the runs; of a table without results inputs only, with parts=()."""
    measured = has_columns(path, tuple(_MEASURED.values()))
    return [
        experiment.run(_parts(experiment, rows, f"{path}: {experiment.name}") if measured else ())
        for experiment, rows in _entries(path)
    ]


def experiments(path: Path) -> list[Experiment]:
    """Read what was set, and nothing that was measured."""
    return [experiment for experiment, _ in _entries(path)]


def _entries(path: Path) -> list[tuple[Experiment, dict[int, Row]]]:
    by_name: dict[str, dict[int, Row]] = {}
    for row in read_rows(path, _COLUMNS):
        by_name.setdefault(row["experiment"], {})[int(row["stage"])] = row
    found = []
    for name, rows in by_name.items():
        try:
            found.append((_experiment(name, next(iter(rows.values())), f"{path}: {name}"), rows))
        except (KeyError, ValueError) as error:
            raise InputError(f"{path}: {name}: not an experiment's row ({error!r})") from error
    return found


def _experiment(name: str, row: Row, where: str) -> Experiment:
    rates = [float(text) for text in row["stage_rates_rps"].split(";")]
    durations = [float(text.rstrip("?")) for text in row["stage_durations_s"].split(";")]
    load = SharedPrefixLoad(
        stages=tuple(Stage(rate, duration) for rate, duration in zip(rates, durations, strict=True)),
        system_tokens=int(row["system_prompt_len"]),
        input_tokens=round(RETOKENISED * (int(row["system_prompt_len"]) + int(row["question_len"]))),
        output_tokens=int(row["output_len"]),
    )
    caveats = [*_CAVEATS, f"load: {row['workload_source']}"]
    if row["cpu_offload"] == "True":
        caveats.append("KV was offloaded to host memory too: left out, for the prompts fit into HBM")
    return Experiment(
        name=name,
        data="vllm_multi_gpu_aggregates",
        model=row["model"],
        gpu=gpu_of(row["hardware"], where),
        tensor_parallel_size=int(row["tp"]),
        precision=precision_of(row["precision"], where),
        workload=row["workload"],
        load=load,
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        gpu_memory_utilization=float(row["gpu_mem_util"] or 0.9),
        caveats=tuple(caveats),
    )


def _parts(experiment: Experiment, rows: dict[int, Row], where: str) -> list[Part]:
    parts = []
    for number, stage in enumerate(experiment.stages()):
        row = rows.get(number)
        if row is None:
            raise InputError(f"{where}: no row of stage {number}")
        try:
            measured = {metric: float(row[column]) for metric, column in _MEASURED.items()}
        except ValueError as error:
            raise InputError(f"{where}: stage {number}: {error}") from error
        decode_ms = measured["mean_e2el_ms"] - measured["mean_ttft_ms"]
        measured["mean_tpot_ms"] = decode_ms / (experiment.load.output_tokens - 1)
        parts.append(Part(measured, stage.counted, stage.labels))
    return parts
