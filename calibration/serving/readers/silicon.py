"""Tables of closed-loop runs (`silicon_e2e`): one row a run, mean TTFT and TPOT at a concurrency.

Clients of `inferencex` rows send 10 x concurrency prompts, the first `concurrency` of them at once; lengths are
uniform in [0.8 L, L]. What `nvidia_internal` clients did is not known: TPOT is taken, TTFT is not.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.readers.tables import Row, above_zero, has_columns, read_rows, whole
from sim.model import load_model
from sim.profile import load_profile, shipped_profiles
from sim.scenario.reading import load_scenario
from workloads.errors import InputError

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
_MEAN_LENGTH: Final = 0.9  # of the nominal length, uniform in [0.8, 1]
_SLACK: Final = 256  # of max_model_len beyond the longest sequence, as the benchmark scripts leave
KV_LIMITED: Final = "limited by KV memory: TTFT dominates"
NOT_MONOTONE: Final = "TPOT falls as concurrency doubles"
OTHER_IMAGE: Final = "another image than the rest of its curve"
IMPOSSIBLE: Final = (
    "from a source with rows faster than prompts and steps could be computed: its prompts were cached"
)
_COLUMNS: Final = ("row_id", "curve_id", "source_class", "in_kernel_scope", "backend")
_READ: Final = (
    *_COLUMNS,
    *("system", "model", "model_path", "precision", "gemm_quant", "tp", "moe_tp", "moe_ep", "attn_dp"),
    *("isl", "osl", "concurrency", "ttft_ms", "tpot_ms", "source", "image", "flag"),
)


def recognises(path: Path) -> bool:
    """Tell whether this is such a table, of runs of vLLM; never raises."""
    if not has_columns(path, _COLUMNS):
        return False
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.DictReader(file), {}).get("backend") == "vllm"


def read(path: Path) -> list[MeasuredRun]:
    """Read the rows whose shapes and dtypes the kernel tables cover."""
    rows = [row for row in read_rows(path, _READ) if row["in_kernel_scope"] == "True"]
    for row in rows:
        _check_fields(path, row)
    apart = _apart(rows)
    return [_run(row, apart.get(row["row_id"])) for row in rows if row["concurrency"] and _known(row)]


def _check_fields(path: Path, row: Row) -> None:
    """Name the row and column of an unknown dtype or what is not a number above 0; a concurrency may be missing."""
    where = f"{path}: row {row['row_id']}"
    for name in ("isl", "osl", "tp", *(("concurrency",) if row["concurrency"] else ())):
        whole(row, name, where)
    for name in ("ttft_ms", "tpot_ms"):
        above_zero(row, name, where)
    if row["gemm_quant"] not in WEIGHT_DTYPES:
        known = ", ".join(name for name in WEIGHT_DTYPES if name)
        raise InputError(f"{where}: gemm_quant is {row['gemm_quant']!r}; known are {known}")


def _known(row: Row) -> bool:
    """Tell whether the row can be simulated, and trusted at all.

    Repeats agree, its concurrency is known, all layers are shared out among the same GPUs, by tensor parallelism: no
    scenario can say data-parallel attention or expert parallelism.
    """
    experts = row["moe_tp"] if load_model(row["model"]).moe is not None else row["tp"]
    plain = row["attn_dp"] == row["moe_ep"] == "1" and experts == row["tp"]
    return row["flag"] in ("", KV_FLAG) and plain


KV_FLAG: Final = "ttft_dominates(queue/KV-limited);"


def _apart(rows: Sequence[Row]) -> dict[str, str]:
    """Why rows are scored apart, by rules that look at measurements of the curve alone."""
    curves: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["concurrency"] and _known(row):
            curves[row["curve_id"]].append(row)
    impossible = {row["source"] for curve in curves.values() for row in curve if _is_impossible(row)}
    said: dict[str, str] = {}
    for curve in curves.values():
        tpot = {int(row["concurrency"]): float(row["tpot_ms"]) for row in curve}
        usual = _usual_image(curve)
        for row in curve:
            twice = tpot.get(2 * int(row["concurrency"]))
            if row["source"] in impossible:
                said[row["row_id"]] = IMPOSSIBLE
            elif row["flag"] == KV_FLAG:
                said[row["row_id"]] = KV_LIMITED
            elif row["image"] != usual:
                said[row["row_id"]] = OTHER_IMAGE
            elif twice is not None and float(row["tpot_ms"]) > twice:
                said[row["row_id"]] = NOT_MONOTONE
    return said


def _is_impossible(row: Row) -> bool:
    """Tell whether a request came back sooner than a closed loop allows on the vendor's figures.

    While a request is in flight, each GPU computes as many prompts as there are requests in flight, at the dense
    peak at best, and the steps of its tokens, each of which reads weights and KV once. Rows whose client is known
    reach 0.72 of that speed at most, two sources whose client is not have rows at 1.4 times it. Only dense models
    are judged.
    """
    model = load_model(row["model"])
    if model.moe is not None or row["system"] not in shipped_profiles():
        return False
    device, gpus, seats = load_profile(row["system"]).device, int(row["tp"]), int(row["concurrency"])
    weights = "fp8" if row["gemm_quant"].startswith("fp8") else "bfloat16"
    isl, osl = float(row["isl"]), float(row["osl"])
    jitters = row["source_class"] == "inferencex"
    if jitters:
        isl, osl = _MEAN_LENGTH * isl, _MEAN_LENGTH * osl
    parameters = model.weight_bytes("bfloat16") / 2
    peak = device.flops_per_s.get(weights, max(device.flops_per_s.values()))
    prompts_s = seats * isl * 2 * parameters / (gpus * peak)
    kv = seats * (isl + osl / 2) * model.kv_bytes_per_token("fp8" if jitters else "auto")
    steps_s = osl * (model.weight_bytes(weights) + kv) / (gpus * device.hbm_bytes_per_s)
    took_s = 1e-3 * (float(row["ttft_ms"]) + (osl - 1) * float(row["tpot_ms"]))
    return prompts_s + steps_s > took_s


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
            "weight_dtype": _weight_dtype(row),
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


def _weight_dtype(row: Row) -> str:
    """Of the linear layers. Qwen's own 8-bit checkpoints are block-scaled, and rows say fp8 of them."""
    if row["model"] in OWN_DTYPES:
        return "auto"
    if row["model_path"].startswith("Qwen/") and row["model_path"].endswith("-FP8"):
        return "fp8_block"
    return WEIGHT_DTYPES[row["gemm_quant"]]


def _lengths(nominal: int, *, jitters: bool) -> int | dict[str, list[int]]:
    """Uniform in [0.8 L, L], as InferenceX draws them."""
    return {"uniform": [round(0.8 * nominal), nominal]} if jitters else nominal
