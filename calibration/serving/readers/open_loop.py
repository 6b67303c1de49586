"""Stage summaries of vLLM 0.15.1 runs under inference-perf (`e2e_openloop`): inputs of all runs, results of some.

A table of workloads names each run's settings and mean prompt lengths; a table of measured stages may stand beside
it. Times of arrival are drawn. The reported time between tokens is half the true one and is not read: mean TPOT is
(mean E2E - mean TTFT) / (tokens - 1), which holds where all outputs are equally long.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.readers.experiment import Experiment
from calibration.serving.readers.shared_prefix import SharedPrefixLoad, Stage
from calibration.serving.readers.tables import Row, above_zero, has_columns, read_rows, whole

_COLUMNS: Final = ("exp", "stage", "load_type", "rate_rps", "duration_s", "question_len", "prompt_len_mean")
_READ: Final = (
    *_COLUMNS,
    *("model", "tp", "system_prompt_len", "output_len"),
    *("max_num_batched_tokens", "max_num_seqs", "max_model_len"),
)
_MEASURED_COLUMNS: Final = ("exp", "stage", "n_success", "n_fail", "ttft_mean_ms", "e2e_mean_ms")
OVERLOADED: Final = "overloaded: requests failed, and latencies are of the others"
_CAVEATS: Final = (
    "times of arrival are drawn: a Poisson process",
    "prompts of one length",
    "KV blocks by the arithmetic of sim/memory.py: the engine's log is not part of the table",
    "whether blocks were found in the prefix cache is not logged: the engine's default (on) is assumed",
    "which prompts share a system prompt is not recorded",
    "tracing (OTEL) was on",
)
_NAMES: Final = {"ttft": "ttft", "e2e": "e2el"}
_STATISTICS: Final = ("mean", "median", "p90", "p95", "p99")


def recognises(path: Path) -> bool:
    """Tell whether this is such a table of workloads."""
    return has_columns(path, _COLUMNS)


def read(path: Path) -> list[MeasuredRun]:
    """Read the runs; those that no table beside it has results of are inputs only, with parts=()."""
    measured = {
        (row["exp"], whole(row, "stage", f"{table}: {row['exp']}", least=-1)): (
            row,
            f"{table}: {row['exp']}: stage {row['stage']}",
        )
        for table in sorted(path.parent.glob("*.csv"))
        if has_columns(table, _MEASURED_COLUMNS)
        for row in read_rows(table, _MEASURED_COLUMNS)
    }
    runs = []
    for experiment in experiments(path):
        parts = [
            _part(stage, *measured[key], experiment.load.output_tokens)
            for number, stage in enumerate(experiment.stages())
            if (key := (experiment.name, number)) in measured
        ]
        runs.append(experiment.run(parts))
    return runs


def experiments(path: Path) -> list[Experiment]:
    """Read what was set, and nothing that was measured."""
    by_name: dict[str, list[Row]] = {}
    for row in read_rows(path, _READ):
        whole(row, "stage", f"{path}: {row['exp']}", least=0)
        by_name.setdefault(row["exp"], []).append(row)
    for rows in by_name.values():
        rows.sort(key=lambda row: int(row["stage"]))
    return [_experiment(name, rows, f"{path}: {name}") for name, rows in by_name.items()]


def _experiment(name: str, rows: list[Row], where: str) -> Experiment:
    first = rows[0]
    return Experiment(
        name=name,
        data="e2e_openloop",
        model=first["model"],
        gpu="h100_sxm",
        tensor_parallel_size=whole(first, "tp", where),
        precision="auto",
        workload=name.rsplit("-", 1)[-1],
        load=SharedPrefixLoad(
            stages=tuple(
                Stage.of(above_zero(row, "rate_rps", where), above_zero(row, "duration_s", where), where)
                for row in rows
            ),
            system_tokens=whole(first, "system_prompt_len", where),
            input_tokens=round(above_zero(first, "prompt_len_mean", where)),
            output_tokens=whole(first, "output_len", where, least=2),
        ),
        max_num_batched_tokens=whole(first, "max_num_batched_tokens", where),
        max_num_seqs=whole(first, "max_num_seqs", where),
        max_model_len=whole(first, "max_model_len", where),
        caveats=_CAVEATS,
    )


def _part(stage: Part, row: Row, where: str, output_tokens: int) -> Part:
    measured = {
        f"{statistic}_{name}_ms": above_zero(row, f"{source}_{statistic}_ms", where)
        for source, name in _NAMES.items()
        for statistic in _STATISTICS
    }
    failed = whole(row, "n_fail", where, least=0)
    decode_ms = measured["mean_e2el_ms"] - measured["mean_ttft_ms"]
    measured["mean_tpot_ms"] = decode_ms / (output_tokens - 1)
    return Part(measured, stage.counted, stage.labels, apart=OVERLOADED if failed else None)
