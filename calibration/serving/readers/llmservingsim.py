"""Recorded runs of LLMServingSim's validation (`real_runs_llmservingsim`): one folder a run, vLLM 0.19, open loop.

    workload.jsonl          what was offered: intended arrivals, lengths, ids of the full 16-token prompt blocks
    engine.json             the engine's options, and its count of KV blocks where it was recorded
    measured_requests.csv   seconds since the first arrival; absent where the results are not known

Intended arrivals are replayed, not those that came about: all but the first kept to them within milliseconds.
Latencies run from a request's own arrival. Options that the record lacks are vLLM 0.19's defaults: prefix caching,
asynchronous scheduling, blocks of 16 tokens.

Data-parallel ranks that share their experts are no replicas: they step together, and each reads its part of the
experts for the tokens of all. The nearest that can be simulated is one engine on all their GPUs, with the seats and the
budget of all, which splits each expert among them: as many bytes and operations on each GPU, but for attention's
projections, and two all-reduces per layer in place of an all-gather and a reduce-scatter.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.predict import metrics_of
from sim.engine.records import Status
from sim.metrics import Requests
from sim.model import load_model
from sim.scenario.reading import load_scenario
from workloads.build import Workload
from workloads.errors import InputError, TraceFormatError
from workloads.readers.source import json_time, json_whole, read_json_lines
from workloads.trace import NS_PER_S, BlockHashes, Trace

WORKLOAD: Final = "workload.jsonl"
ENGINE: Final = "engine.json"
RESULTS: Final = "measured_requests.csv"
BLOCK_TOKENS: Final = 16
GPUS: Final = {"RTX4090": "rtx_4090", "RTXPRO6000": "rtx_pro_6000"}
"""Names of their hardware for those of profiles."""
MODELS: Final = {"Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b"}
"""Checkpoints whose name is not that of a model here."""

Kwargs = Mapping[str, Any]


def recognises(path: Path) -> bool:
    """Tell whether `path` is one such run, or a folder with some."""
    return bool(_folders(path))


def read(path: Path) -> list[MeasuredRun]:
    """Read one run, or every run of a folder, in the order of their names."""
    folders = _folders(path)
    if not folders:
        raise InputError(f"{path}: no recorded run; a folder with {WORKLOAD} and {ENGINE} is expected")
    return [_run(folder) for folder in folders]


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [
        one
        for one in (path, *sorted(path.iterdir()))
        if (one / WORKLOAD).is_file() and (one / ENGINE).is_file()
    ]


def _run(folder: Path) -> MeasuredRun:
    engine = _json(folder / ENGINE)
    try:
        kwargs: Kwargs = engine["engine_kwargs"]
        instance = engine["sim_cluster_config_used_by_llmservingsim"]["nodes"][0]["instances"][0]
        gpu = GPUS[instance["hardware"]]
        model = _model(engine["model"])
        scenario = _scenario(folder, gpu, model, kwargs, engine["kv_cache"])
        version = engine["vllm_version"]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"{folder / ENGINE}: not the options of a recorded run ({error!r})") from error
    trace = _trace(folder / WORKLOAD)
    if not trace.duration_ns:
        raise InputError(f"{folder / WORKLOAD}: all requests come at once; an open loop is expected")
    return MeasuredRun(
        name=folder.name,
        curve=folder.name,
        labels={
            "data": "llmservingsim",
            "engine": "vllm",
            "engine_version": version,
            "system": gpu,
            "model": model,
            "tensor_parallel_size": kwargs["tensor_parallel_size"],
            "data_parallel_size": kwargs["data_parallel_size"],
            "precision": kwargs["dtype"],
            "request_rate": round((len(trace) - 1) * NS_PER_S / trace.duration_ns, 2),
        },
        scenario=load_scenario(scenario),
        parts=_parts(folder / RESULTS, trace),
        workload=Workload(trace),
        caveats=_caveats(engine["kv_cache"], kwargs),
    )


def _model(checkpoint: str) -> str:
    name = checkpoint.rpartition("/")[2]
    return load_model(MODELS.get(name, name.lower())).name


def _scenario(
    folder: Path, gpu: str, model: str, kwargs: Kwargs, kv_cache: Mapping[str, Any] | None
) -> dict[str, Any]:
    ranks = kwargs["data_parallel_size"]
    joined = ranks if kwargs["enable_expert_parallel"] else 1
    engine: dict[str, Any] = {
        "max_num_seqs": joined * kwargs["max_num_seqs"],
        "max_num_batched_tokens": joined * kwargs["max_num_batched_tokens"],
        "max_model_len": kwargs["max_model_len"],
        "kv_cache_dtype": kwargs["kv_cache_dtype"],
        "block_size": BLOCK_TOKENS,
        "enable_prefix_caching": True,
    }
    if kv_cache is not None:
        engine["block_size"] = kv_cache["block_size"]
        engine["gpu_memory_utilization"] = kv_cache["gpu_memory_utilization"]
        engine["num_gpu_blocks_override"] = kv_cache["num_gpu_blocks"]
        engine["enable_prefix_caching"] = kv_cache["enable_prefix_caching"]
    return {
        "model": model,
        "hardware": {
            "gpu": gpu,
            "tensor_parallel_size": joined * kwargs["tensor_parallel_size"],
            "weight_dtype": kwargs["dtype"],
        },
        "engine": engine,
        "cluster": {"replicas": ranks // joined},
        "workload": {"trace": str(folder / WORKLOAD)},
    }


def _caveats(kv_cache: Mapping[str, Any] | None, kwargs: Kwargs) -> tuple[str, ...]:
    said = []
    if kv_cache is None:
        said.append("the engine's KV blocks were not recorded: the memory model's count stands in")
    if kwargs["data_parallel_size"] > 1 and kwargs["enable_expert_parallel"]:
        said.append(
            f"{kwargs['data_parallel_size']} data-parallel ranks with expert parallelism: simulated as one engine with "
            "tensor parallelism over their GPUs and the limits of all, not as ranks with queues of their own"
        )
    return tuple(said)


def _trace(path: Path) -> Trace:
    rows = list(read_json_lines(path))
    lines = [line for line, _ in rows]

    def column(name: str) -> list[Any]:
        return [row.get(name) for _, row in rows]

    inputs = json_whole(path, lines, "input_tokens", column("input_tokens"))
    blocks = column("prefix_block_ids")
    for line, own, tokens in zip(lines, blocks, inputs.tolist(), strict=True):
        full = tokens // BLOCK_TOKENS
        if type(own) is not list or len(own) != full or not all(type(one) is int for one in own):
            message = (
                f"prefix_block_ids must be {full} whole numbers, one per {BLOCK_TOKENS} tokens of the prompt"
            )
            raise TraceFormatError(path, line, message)
    return Trace.build(
        json_time(path, lines, "arrival_s", column("arrival_s"), NS_PER_S),
        inputs,
        json_whole(path, lines, "output_tokens", column("output_tokens")),
        hashes=BlockHashes.build(
            BLOCK_TOKENS, inputs // BLOCK_TOKENS, [one for own in blocks for one in own]
        ),
        source=path.name,
    )


def _parts(path: Path, trace: Trace) -> tuple[Part, ...]:
    if not path.is_file():
        return ()
    requests = _requests(path)
    for name in ("input_tokens", "output_tokens"):
        if not np.array_equal(requests.columns[name], getattr(trace, name)):
            raise InputError(f"{path}: {name} differ from those of {WORKLOAD}")
    return (Part(metrics_of(requests)),)


def _requests(path: Path) -> Requests:
    """The recorded requests in the columns of a simulated run."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        tokens = {name: _column(rows, name).astype(np.int64) for name in ("input_tokens", "output_tokens")}
        times = {f"{name}_ns": _ns(rows, f"{name}_s") for name in ("arrival", "first_token", "last_token")}
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the requests of a recorded run ({error!r})") from error
    completed = np.full(len(rows), Status.COMPLETED, dtype=np.int64)
    return Requests({"status": completed} | tokens | times)


def _column(rows: Sequence[Mapping[str, str]], name: str) -> NDArray[np.float64]:
    return np.array([float(row[name]) for row in rows])


def _ns(rows: Sequence[Mapping[str, str]], name: str) -> NDArray[np.int64]:
    return np.rint(NS_PER_S * _column(rows, name)).astype(np.int64)


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    return content
