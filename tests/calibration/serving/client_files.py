"""One run of known requests, as four clients write it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100_sxm"},
    "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
}


@dataclass
class Known:
    """Requests in the order in which they were sent; seconds.

    gaps[i]   times between the tokens of request i
    failed    which went wrong
    """

    sent: list
    ttft: list
    gaps: list
    inputs: list
    failed: list = field(default_factory=list)
    prompts: list | None = None

    def __post_init__(self):
        self.failed = self.failed or [False] * len(self.sent)

    def __len__(self):
        return len(self.sent)

    @property
    def outputs(self):
        return [len(gaps) + 1 for gaps in self.gaps]

    @property
    def latency(self):
        return [ttft + sum(gaps) for ttft, gaps in zip(self.ttft, self.gaps, strict=True)]

    @property
    def by_completion(self):
        ends = [sent + latency for sent, latency in zip(self.sent, self.latency, strict=True)]
        return np.argsort(ends, kind="stable").tolist()

    def prompt(self, i):
        return None if self.prompts is None else self.prompts[i]


def known_run(seed=0, count=40, *, rate=4.0, prompts=None, failed=()):
    """Poisson arrivals; one request has a single token."""
    rng = np.random.default_rng(seed)
    outputs = rng.integers(2, 30, count)
    outputs[0] = 1
    return Known(
        sent=np.cumsum(rng.exponential(1 / rate, count)).tolist(),
        ttft=rng.uniform(0.05, 0.4, count).tolist(),
        gaps=[rng.uniform(0.01, 0.06, n - 1).tolist() for n in outputs],
        inputs=rng.integers(32, 300, count).tolist(),
        failed=[i in failed for i in range(count)],
        prompts=prompts,
    )


def closed_run(seats, count, seed=0):
    """`seats` in flight: each request is sent when another ends."""
    run = known_run(seed, count)
    free = [0.0] * seats
    for i, latency in enumerate(run.latency):
        seat = int(np.argmin(free))
        run.sent[i] = free[seat]
        free[seat] += latency + 1e-4
    return run


def write_vllm(folder: Path, run: Known, **changes):
    good = [not failed for failed in run.failed]

    def of(values, zero):
        return [value if ok else zero for value, ok in zip(values, good, strict=True)]

    document = {
        "num_prompts": len(run),
        "request_rate": 4.0,
        "max_concurrency": None,
        "completed": sum(good),
        "failed": len(run) - sum(good),
        "total_output_tokens": sum(of(run.outputs, 0)),
        "input_lens": run.inputs,
        "output_lens": of(run.outputs, 0),
        "ttfts": of(run.ttft, 0.0),
        "itls": of(run.gaps, []),
        "latencies": of(run.latency, 0.0),
        "start_times": [5000.0 + sent for sent in run.sent],
        "queue_times": [1e-4] * len(run),
        "errors": ["" if ok else "Bad Request" for ok in good],
    }
    return _put(folder / "result.json", document | changes)


def write_guidellm(folder: Path, run: Known, strategy=None, late=0.002, incomplete=(), **changes):
    def record(i):
        start = 1.7e9 + run.sent[i]
        first = start + run.ttft[i]
        last = start + run.latency[i]
        timings = {
            "targeted_start": start - late,
            "request_start": start,
            "first_token_iteration": first,
            "last_token_iteration": last,
            "request_end": last + 0.001,
        }
        return {
            "info": {"timings": timings, "conversation_id": str(i)},
            "request_start_time": start,
            "prompt_tokens": run.inputs[i],
            "output_tokens": run.outputs[i],
            "request_args": json.dumps({"body": {"prompt": run.prompt(i)}}),
        }

    bad = [i for i in range(len(run)) if run.failed[i]]
    benchmark = {
        "config": {"strategy": strategy or {"type_": "poisson", "rate": 4.0, "max_concurrency": 10240}},
        "requests": {
            "successful": [record(i) for i in run.by_completion if i not in bad and i not in incomplete],
            "errored": [record(i) for i in bad],
            "incomplete": [record(i) for i in incomplete],
        },
    }
    return _put(folder / "benchmarks.json", {"benchmarks": [benchmark | changes]})


def write_aiperf(folder: Path, run: Known, late_ns=2_000_000, warmup=2, summary=None):
    def line(i, phase="profiling"):
        start = 1_700_000_000_000_000_000 + round(1e9 * run.sent[i])
        meta = {
            "benchmark_phase": phase,
            "credit_issued_ns": start - late_ns,
            "request_start_ns": start,
            "conversation_id": f"session_{i:06d}",
            "turn_index": 0,
        }
        if run.failed[i]:
            return {"metadata": meta, "metrics": {}, "error": {"type": "ClientConnectorError"}}
        values = {
            "time_to_first_token": (1e3 * run.ttft[i], "ms"),
            "request_latency": (1e3 * run.latency[i], "ms"),
            "inter_chunk_latency": ([1e3 * gap for gap in run.gaps[i]], "ms"),
            "usage_prompt_tokens": (run.inputs[i], "tokens"),
            "usage_completion_tokens": (run.outputs[i], "tokens"),
        }
        return {
            "metadata": meta,
            "metrics": {name: {"value": v, "unit": unit} for name, (v, unit) in values.items()},
        }

    rows = [line(i % len(run), "warmup") for i in range(warmup)] + [line(i) for i in run.by_completion]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "profile_export.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    if summary is not None:
        _put(folder / "profile_export_aiperf.json", summary)
    if run.prompts is not None:
        data = [
            {"session_id": f"session_{i:06d}", "payloads": [{"prompt": run.prompt(i)}]}
            for i in range(len(run))
        ]
        _put(folder / "inputs.json", {"data": data})
    return path


def write_inference_perf(folder: Path, run: Known, *, stages=(), counted_twice=False):
    def record(i):
        start = 9000.0 + run.sent[i]
        base = {"start_time": start, "end_time": start + run.latency[i] + 5e-5}
        base["request"] = json.dumps({"prompt": run.prompt(i)})
        if run.failed[i]:
            return base | {
                "info": {"response_metrics": None},
                "error": {"error_type": "ClientConnectorError"},
            }
        times = [start + run.ttft[i] + sum(run.gaps[i][:n]) for n in range(run.outputs[i])]
        tokens = run.outputs[i]
        response = {
            "output_tokens": tokens + 3,
            "server_usage": {"prompt_tokens": run.inputs[i], "completion_tokens": tokens},
            "chunk_times": times,
            "output_token_times": times,
        }
        tpot = (run.latency[i] - run.ttft[i]) / (tokens - 1) if tokens > 1 else None
        computed = {
            "time_to_first_token": run.ttft[i],
            "time_per_output_token": tpot if tpot is None or not counted_twice else tpot / 2,
        }
        return base | {"info": {"response_metrics": response}, "computed_metrics": computed, "error": None}

    for number, count in enumerate(stages):
        _put(
            folder / f"stage_{number}_lifecycle_metrics.json",
            {"load_summary": {"count": count, "requested_rate": float(number + 1)}},
        )
    return _put(folder / "per_request_lifecycle_metrics.json", [record(i) for i in run.by_completion])


def write_scrapes(folder: Path, run: Known, *, requests=None, ttft=0.1, tpot=0.02, hits=0.0, start=100):
    """Scrapes of a server that saw the run with these means; counters run on from an earlier load."""
    count = len(run) - sum(run.failed) if requests is None else requests
    sums = {
        "vllm:time_to_first_token_seconds": ttft,
        "vllm:request_time_per_output_token_seconds": tpot,
        "vllm:e2e_request_latency_seconds": 2.0,
    }

    def scrape(number):
        lines = ["# HELP vllm:x something", "# TYPE vllm:x histogram"]
        for name, mean in sums.items():
            lines.append(f'{name}_bucket{{engine="0",le="+Inf"}} {number}.0')
            lines.append(f'{name}_count{{engine="0"}} {float(number)}')
            lines.append(f'{name}_sum{{engine="0"}} {mean * number}')
            lines.append(f'{name}_created{{engine="0"}} 1.7e+09')
        lines.append(f'vllm:prefix_cache_queries_total{{engine="0"}} {number * 100.0}')
        lines.append(f'vllm:prefix_cache_hits_total{{engine="0"}} {number * 100.0 * hits}')
        return "\n".join(lines) + "\n"

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics_before.txt").write_text(scrape(start))
    (folder / "metrics_after.txt").write_text(scrape(start + count))


def _put(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
