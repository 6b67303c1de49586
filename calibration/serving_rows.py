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
    cached_prompts: bool = False
    """Nearly every prompt was in the prefix cache: prefill costs next to nothing."""

    @property
    def async_scheduling(self) -> bool:
        return self.source_class != "nvidia_internal"


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


def open_loop_rows(path: Path) -> list[ServingRow]:
    """Stages of `vllm_h100_perrequest` that were not overloaded, as steady states.

    By Little's law `rate x (E2E - TTFT)` sequences decode. The runs cycle 100 prompts with prefix caching on.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            raw = list(csv.DictReader(file))
        return [_stage(row) for row in raw if row["stage"] != "-1" and row["overloaded_in_source"] == "0"]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a table of open-loop stages ({error!r})") from error


def _stage(row: dict[str, str]) -> ServingRow:
    decoding = float(row["rate_rps"]) * (float(row["e2e_ms_mean"]) - float(row["ttft_ms_mean"])) * 1e-3
    return ServingRow(
        system="h100_sxm",
        source_class="open_loop",
        model=row["model"],
        curve_id=row["experiment"],
        tensor_parallel_size=int(row["tp"]),
        weight_dtype="auto",
        kv_cache_dtype="auto",
        input_tokens=float(row["prompt_len_mean"]),
        output_tokens=float(row["output_len_requested"]),
        concurrency=max(1, round(decoding)),
        decoding=decoding,
        tpot_s=float(row["itl_derived_ms_requested_outlen"]) * 1e-3,
        cached_prompts=True,
    )


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
