"""Result directories made by hand, small enough to know every number in them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

STAGES = ("queue", "prefill", "decode", "preempted")


def requests_table(count: int, *, factor: float = 1.0) -> dict[str, list]:
    """Request i arrives at i s; TTFT is (i + 1) x 10 ms, a fifth of it queue; E2EL is 11 times that; 11 tokens."""
    ttft = [factor * (i + 1) / 100 for i in range(count)]
    return {
        "request_id": list(range(count)),
        "tenant": ["default"] * count,
        "replica": [i % 2 for i in range(count)],
        "arrival_s": [float(i) for i in range(count)],
        "status": ["completed"] * count,
        "ttft_s": ttft,
        "tpot_s": list(ttft),
        "e2el_s": [11 * value for value in ttft],
        "stage_queue_s": [0.2 * value for value in ttft],
        "stage_prefill_s": [0.8 * value for value in ttft],
        "stage_decode_s": [10 * value for value in ttft],
        "stage_preempted_s": [0.0] * count,
    }


def timeline_table() -> dict[str, list]:
    """Replica 0: a batch of 2 for 1 s, then of 4 for 2 s, then idle; replica 1: one prompt of 100 tokens for 1 s."""
    return {
        "t_s": [0.0, 1.0, 3.0, 0.0, 1.0],
        "replica": [0, 0, 0, 1, 1],
        "running": [2, 4, 0, 1, 0],
        "waiting": [1, 0, 0, 0, 0],
        "kv_used_blocks": [10, 20, 0, 5, 0],
        "prefill_tokens": [0, 0, 0, 100, 0],
        "decode_seqs": [2, 4, 0, 0, 0],
        "steps": [10, 10, 0, 1, 0],
        "duration_s": [1.0, 2.0, 0.0, 1.0, 0.0],
    }


def summary(count: int, *, factor: float = 1.0, **own: object) -> dict:
    metrics = {}
    for name, scale in (("ttft", 10.0), ("tpot", 10.0), ("itl", 9.0), ("e2el", 110.0)):
        for rank, statistic in enumerate(("mean", "median", "p50", "p90", "p99"), 1):
            metrics[f"{statistic}_{name}_ms"] = factor * scale * rank if count else None
    return {
        "date": "20200101-000000",
        "model_id": "tiny",
        "num_prompts": max(count, 3),
        "request_rate": 1.0,
        "max_concurrency": None,
        "duration": float(count + 2) if count else 0.0,
        "completed": count,
        "request_throughput": 1.0,
        "request_goodput": 0.5,
        "output_throughput": 11.0,
        "total_token_throughput": 20.0,
        **metrics,
        "sim": {
            "servetwin": "0",
            "seed": 7,
            "profile": {"name": "toy_gpu", "engine": "vLLM 0", "hash": "abc123"},
            "replicas": 2,
            "gpus": 2,
            "num_gpu_blocks": 101,
            "preemptions": 0,
            "kv_usage_mean": 0.1,
            "kv_usage_peak": 0.2,
            "busy_fraction": 0.5,
            "rejected": {},
            "extrapolated": {},
            "warnings": [],
            **own,
        },
    }


def write_run(
    directory: Path,
    count: int = 20,
    *,
    factor: float = 1.0,
    slo: dict | None = None,
    model: str = "tiny",
    **own: object,
) -> Path:
    directory.mkdir(parents=True)
    lock = {"servetwin": "0", "scenario": {"model": model, "slo": slo or {"ttft_ms": 100, "tpot_ms": None}}}
    (directory / "scenario.lock.yaml").write_text(yaml.safe_dump(lock))
    document = summary(count, factor=factor, **own) | {"model_id": model}
    (directory / "summary.json").write_text(json.dumps(document))
    requests = requests_table(count, factor=factor)
    types = {name: pa.string() if name in ("tenant", "status") else pa.float64() for name in requests}
    write_table(
        {name: pa.array(values, types[name]) for name, values in requests.items()},
        directory / "requests.parquet",
    )
    timeline = timeline_table() if count else {name: [] for name in timeline_table()}
    write_table(
        {name: pa.array(values, pa.float64()) for name, values in timeline.items()},
        directory / "timeline.parquet",
    )
    return directory


def write_table(columns: dict, path: Path) -> None:
    pq.write_table(pa.table(columns), path)


def comparison(names: tuple[str, ...] = ("static", "dynamic"), **more: object) -> dict:
    arms = [
        {
            "name": name,
            "directory": f"arms/{i}",
            "set": {"policies.batcher": name},
            "metrics": {"p99_ttft_ms": 100.0 - 10 * i, "median_ttft_ms": 50.0, "request_goodput": 2.0 + i},
            "gpus": 2,
            "cost_per_hour": 6.0,
        }
        for i, name in enumerate(names)
    ]
    differences = [
        {
            "arm": name,
            "metric": metric,
            "delta": delta,
            "relative": delta / 100,
            "ci_low": low,
            "ci_high": high,
        }
        for name in names[1:]
        for metric, delta, low, high in (
            ("p99_ttft_ms", -10.0, -15.0, -5.0),
            ("median_ttft_ms", 0.0, -1.0, 1.0),
            ("request_goodput", 1.0, 0.5, 1.5),
        )
    ]
    return {
        "arms": arms,
        "differences": differences,
        "winner": names[-1],
        "verdict": f"{names[-1]} is better.",
        "metric": "request_goodput",
        "replications": 5,
        "confidence": 0.95,
        "warmup": {"rule": "MSER-5 on e2el", "removed": 10, "requests": 20},
        "engine_flags": "--max-num-seqs 64",
        "engine_notes": ["a note on flags"],
        "warnings": ["a caution"],
        **more,
    }


def write_comparison(directory: Path, names: tuple[str, ...] = ("static", "dynamic"), **more: object) -> Path:
    directory.mkdir(parents=True)
    (directory / "comparison.json").write_text(json.dumps(comparison(names, **more)))
    for i in range(len(names)):
        write_run(directory / "arms" / str(i), factor=1.0 + i)
    return directory


def plan() -> dict:
    def point(rate: float, replicas: int, value: float | None) -> dict:
        metrics = None if value is None else {"p99_ttft_ms": value}
        return {
            "request_rate": rate,
            "replicas": replicas,
            "met": value is not None and value <= 400,
            "metrics": metrics,
        }

    return {
        "slo": {"p99_ttft_ms": 400.0},
        "slo_met": True,
        "request_rate": 30.0,
        "scenario_replicas": 1,
        "max_request_rate": 15.0,
        "saturation_rate": 25.0,
        "replicas": 3,
        "gpus": 3,
        "cost_per_hour": 9.0,
        "binding_constraint": "p99_ttft_ms",
        "explanation": "p99_ttft_ms is 450 ms at 16 requests/s.",
        "curve": [
            point(16.0, 1, 450.0),
            point(10.0, 1, 200.0),
            point(15.0, 1, 390.0),
            point(30.0, 3, 300.0),
            point(30.0, 1, None),
        ],
        "warnings": ["few requests"],
    }
