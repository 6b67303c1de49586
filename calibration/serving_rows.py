"""Measured serving rows (`silicon_e2e`): a configuration, and its time per output token in steady state."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from workloads.errors import InputError

WEIGHT_DTYPES = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "": "auto", "bfloat16": "bfloat16"}
# `inferencex`: lengths uniform in [0.8, 1] of the nominal ones; the others are taken as they stand.
MEAN_LENGTH = {"inferencex": 0.9}
# InferenceX runs Llama with 8-bit KV and async scheduling; vLLM 0.12, of the `nvidia_internal` rows,
# scheduled in turn (async became the default in 0.14).
FP8_KV = {"inferencex"}


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One closed-loop run; lengths in tokens, `tpot_s` the mean time per output token."""

    system: str
    source_class: str
    model: str
    curve_id: str
    tensor_parallel_size: int
    weight_dtype: str
    kv_cache_dtype: str
    input_tokens: float
    output_tokens: float
    concurrency: int
    decoding: float
    tpot_s: float

    @property
    def async_scheduling(self) -> bool:
        return self.source_class == "inferencex"


def serving_rows(
    path: Path, system: str | None = None, source_class: str | None = "inferencex"
) -> list[ServingRow]:
    """Clean rows (no flag, shapes and dtypes that the kernel tables cover), optionally of one system."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            raw = list(csv.DictReader(file))
        rows = [_row(row) for row in raw if row["flag"] == "" and row["in_kernel_scope"] == "True"]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a table of serving rows ({error!r})") from error
    return [row for row in rows if system in {None, row.system} and source_class in {None, row.source_class}]


def _row(row: dict[str, str]) -> ServingRow:
    share = MEAN_LENGTH.get(row["source_class"], 1.0)
    concurrency = int(row["concurrency"])
    return ServingRow(
        system=row["system"],
        source_class=row["source_class"],
        model=row["model"],
        curve_id=row["curve_id"],
        tensor_parallel_size=int(row["tp"]),
        weight_dtype=WEIGHT_DTYPES[row["gemm_quant"]],
        kv_cache_dtype="fp8"
        if row["source_class"] in FP8_KV and row["model"].startswith("llama")
        else "auto",
        input_tokens=share * float(row["isl"]),
        output_tokens=share * float(row["osl"]),
        concurrency=concurrency,
        decoding=max(1.0, concurrency * float(row["est_running_frac"])),
        tpot_s=float(row["tpot_ms"]) * 1e-3,
    )
