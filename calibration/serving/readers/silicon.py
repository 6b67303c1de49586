"""Tables of closed-loop runs (`silicon_e2e`): one row a run, mean TTFT and TPOT at a concurrency.

Clients of `inferencex` rows send 10 x concurrency prompts, the first `concurrency` of them at once; lengths are
uniform in [0.8 L, L]. What `nvidia_internal` clients did is not known: TPOT is taken, TTFT is not.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.readers.tables import has_columns
from sim.scenario.reading import load_scenario
from workloads.errors import InputError

Row = Mapping[str, str]

WEIGHT_DTYPES: Final = {
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "": "auto",
    "bfloat16": "bfloat16",
}
PROMPTS_PER_SEAT: Final = 10
OWN_DTYPES: Final = ("gpt-oss-20b", "gpt-oss-120b")
"""Models with one checkpoint, whose experts alone are of the dtype that the rows name."""
_TOKENS: Final = 8192  # max_num_batched_tokens of these runs
_SEATS_B200: Final = 512
_SLACK: Final = 256  # of max_model_len beyond the longest sequence, as the benchmark scripts leave
KV_LIMITED: Final = "limited by KV memory: TTFT dominates"
NOT_MONOTONE: Final = "TPOT falls as concurrency doubles"
OTHER_IMAGE: Final = "another image than the rest of its curve"
_COLUMNS: Final = ("row_id", "curve_id", "source_class", "in_kernel_scope", "backend")


def recognises(path: Path) -> bool:
    """Tell whether this is such a table, of runs of vLLM; never raises."""
    if not has_columns(path, _COLUMNS):
        return False
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.DictReader(file), {}).get("backend") == "vllm"


def read(path: Path) -> list[MeasuredRun]:
    """Read the rows whose shapes and dtypes the kernel tables cover."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["in_kernel_scope"] == "True"]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except KeyError as error:
        raise InputError(
            f"{path}: not a table of closed-loop serving rows, it has no column {error}"
        ) from error
    try:
        apart = _apart(rows)
        return [_run(row, apart.get(row["row_id"])) for row in rows if row["concurrency"] and _known(row)]
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a table of closed-loop serving rows ({error!r})") from error


def _known(row: Row) -> bool:
    """Tell whether the row can be trusted at all: repeats agree, its concurrency is known."""
    return row["flag"] in ("", KV_FLAG)


KV_FLAG: Final = "ttft_dominates(queue/KV-limited);"


def _apart(rows: Sequence[Row]) -> dict[str, str]:
    """Why rows are scored apart, by rules that look at measurements of the curve alone."""
    curves: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["concurrency"] and _known(row):
            curves[row["curve_id"]].append(row)
    said: dict[str, str] = {}
    for curve in curves.values():
        tpot = {int(row["concurrency"]): float(row["tpot_ms"]) for row in curve}
        usual = _usual_image(curve)
        for row in curve:
            twice = tpot.get(2 * int(row["concurrency"]))
            if row["flag"] == KV_FLAG:
                said[row["row_id"]] = KV_LIMITED
            elif row["image"] != usual:
                said[row["row_id"]] = OTHER_IMAGE
            elif twice is not None and float(row["tpot_ms"]) > twice:
                said[row["row_id"]] = NOT_MONOTONE
    return said


def _usual_image(curve: Iterable[Row]) -> str:
    images = [row["image"] for row in curve]
    return max(sorted(set(images)), key=images.count)


def _run(row: Row, apart: str | None) -> MeasuredRun:
    measured = {"mean_tpot_ms": float(row["tpot_ms"])}
    jitters = row["source_class"] == "inferencex"
    if jitters:
        measured["mean_ttft_ms"] = float(row["ttft_ms"])
    concurrency = int(row["concurrency"])
    return MeasuredRun(
        name=row["row_id"],
        curve=row["curve_id"],
        labels={
            "data": row["source_class"],
            "engine": "vllm",
            "system": row["system"],
            "model": row["model"],
            "tensor_parallel_size": int(row["tp"]),
            "precision": row["precision"],
            "input_tokens": int(row["isl"]),
            "output_tokens": int(row["osl"]),
            "concurrency": concurrency,
        },
        scenario=load_scenario(_scenario(row, concurrency, jitters=jitters)),
        parts=(Part(measured, apart=apart),),
        caveats=() if jitters else ("what the client did is not known: TPOT alone is scored",),
    )


def _scenario(row: Row, concurrency: int, *, jitters: bool) -> dict[str, Any]:
    isl, osl = int(row["isl"]), int(row["osl"])
    on_b200 = row["system"] == "b200_sxm"
    fp8_kv = jitters and (row["model"].startswith("llama") or on_b200)
    return {
        "model": row["model"],
        "hardware": {
            "gpu": row["system"],
            "tensor_parallel_size": int(row["tp"]),
            "weight_dtype": WEIGHT_DTYPES[row["gemm_quant"]] if row["model"] not in OWN_DTYPES else "auto",
        },
        "engine": {
            "max_num_seqs": _SEATS_B200 if on_b200 else max(concurrency, 1),
            "max_num_batched_tokens": max(_TOKENS, concurrency),
            "max_model_len": isl + osl + _SLACK,
            "kv_cache_dtype": "fp8" if fp8_kv else "auto",
            "async_scheduling": jitters,
            "cudagraph_mode": "full_decode_only" if on_b200 and jitters else "full_and_piecewise",
        },
        "workload": {
            "input_tokens": _lengths(isl, jitters=jitters),
            "output_tokens": _lengths(osl, jitters=jitters),
            "max_concurrency": concurrency,
            "num_requests": PROMPTS_PER_SEAT * concurrency,
        },
    }


def _lengths(nominal: int, *, jitters: bool) -> int | dict[str, list[int]]:
    """Uniform in [0.8 L, L], as InferenceX draws them."""
    return {"uniform": [round(0.8 * nominal), nominal]} if jitters else nominal
