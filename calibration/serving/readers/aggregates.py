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
from calibration.serving.readers.tables import Row, above_zero, above_zero_in, has_columns, read_rows, whole
from workloads.errors import InputError

_COLUMNS: Final = ("experiment", "exp_id", "stage", "stage_rates_rps", "stage_durations_s", "workload_source")
_READ: Final = (
    *_COLUMNS,
    *("model", "hardware", "tp", "precision", "cpu_offload", "workload"),
    *("system_prompt_len", "question_len", "output_len", "max_num_batched_tokens", "gpu_mem_util"),
)
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
    for row in read_rows(path, _READ):
        stage = whole(row, "stage", f"{path}: {row['experiment']}", least=-1)
        by_name.setdefault(row["experiment"], {})[stage] = row
    return [
        (_experiment(name, next(iter(rows.values())), f"{path}: {name}"), rows)
        for name, rows in by_name.items()
    ]


def _experiment(name: str, row: Row, where: str) -> Experiment:
    rates = [above_zero_in(text, f"{where}: stage_rates_rps") for text in row["stage_rates_rps"].split(";")]
    durations = [
        above_zero_in(text.rstrip("?"), f"{where}: stage_durations_s")
        for text in row["stage_durations_s"].split(";")
    ]
    if len(rates) != len(durations):
        raise InputError(f"{where}: {len(rates)} stage_rates_rps, and {len(durations)} stage_durations_s")
    system_tokens = whole(row, "system_prompt_len", where)
    load = SharedPrefixLoad(
        stages=tuple(
            Stage.of(rate, duration, where) for rate, duration in zip(rates, durations, strict=True)
        ),
        system_tokens=system_tokens,
        input_tokens=round(RETOKENISED * (system_tokens + whole(row, "question_len", where))),
        output_tokens=whole(row, "output_len", where, least=2),
    )
    caveats = [*_CAVEATS, f"load: {row['workload_source']}"]
    if row["cpu_offload"] == "True":
        caveats.append("KV was offloaded to host memory too: left out, for the prompts fit into HBM")
    return Experiment(
        name=name,
        data="vllm_multi_gpu_aggregates",
        model=row["model"],
        gpu=gpu_of(row["hardware"], where),
        tensor_parallel_size=whole(row, "tp", where),
        precision=precision_of(row["precision"], where),
        workload=row["workload"],
        load=load,
        max_num_batched_tokens=whole(row, "max_num_batched_tokens", where),
        gpu_memory_utilization=above_zero(row, "gpu_mem_util", where) if row["gpu_mem_util"] else 0.9,
        caveats=tuple(caveats),
    )


def _parts(experiment: Experiment, rows: dict[int, Row], where: str) -> list[Part]:
    parts = []
    for number, stage in enumerate(experiment.stages()):
        row = rows.get(number)
        if row is None:
            raise InputError(f"{where}: no row of stage {number}")
        at = f"{where}: stage {number}"
        measured = {metric: above_zero(row, column, at) for metric, column in _MEASURED.items()}
        decode_ms = measured["mean_e2el_ms"] - measured["mean_ttft_ms"]
        measured["mean_tpot_ms"] = decode_ms / (experiment.load.output_tokens - 1)
        parts.append(Part(measured, stage.counted, stage.labels))
    return parts
