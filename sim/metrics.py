"""Metrics, computed after the run from its records, by the definitions of `vllm bench serve`.

Latencies are milliseconds in summaries. Requests that were rejected enter no latency statistic; percentiles are
NumPy's linear ones; std is that of the population; the duration runs from the start of the client to the last token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Int64, Status, StepColumns

Float64 = NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)
STAGES = ("tokenise", "queue", "prefix_load", "prefill", "decode", "preempted")


@dataclass(frozen=True, eq=False)
class Requests:
    """All requests of a run as columns; times are integer nanoseconds. Derived ones are over the completed only."""

    columns: Mapping[str, Int64]

    def __len__(self) -> int:
        return int(self.columns["status"].size)

    @cached_property
    def completed(self) -> NDArray[np.bool_]:
        return self.columns["status"] == Status.COMPLETED

    def _done(self, name: str) -> Int64:
        return self.columns[name][self.completed]

    @cached_property
    def arrival_ns(self) -> Int64:
        return self._done("arrival_ns")

    @cached_property
    def input_tokens(self) -> Int64:
        return self._done("input_tokens")

    @cached_property
    def output_tokens(self) -> Int64:
        return self._done("output_tokens")

    @cached_property
    def last_token_ns(self) -> Int64:
        return self._done("last_token_ns")

    @cached_property
    def ttft_ns(self) -> Int64:
        return self._done("first_token_ns") - self.arrival_ns

    @cached_property
    def e2el_ns(self) -> Int64:
        return self.last_token_ns - self.arrival_ns

    @cached_property
    def tpot_ns(self) -> Float64:
        """Per request; NaN where there is only one token."""
        gaps = (self.output_tokens - 1).astype(np.float64)
        return np.divide(self.e2el_ns - self.ttft_ns, gaps, out=np.full(gaps.size, np.nan), where=gaps > 0)

    @cached_property
    def stages_ns(self) -> dict[str, Int64]:
        """Where each request's time went; the stages sum to E2EL exactly.

        tokenise     on the way through the API server
        queue        from there until first scheduled, less prefix_load
        prefix_load  waiting for KV of its prompt to come from another tier
        prefill      first scheduled until first token, less preempted
        decode       first token until last token, less preempted
        preempted    from each preemption until scheduled again; computing again counts as prefill or decode
        """
        scheduled, first = self._done("scheduled_ns"), self._done("first_token_ns")
        queued, loading = self._done("queued_ns"), self._done("loading_ns")
        in_prefill, in_decode = self._done("paused_prefill_ns"), self._done("paused_decode_ns")
        return {
            "tokenise": queued - self.arrival_ns,
            "queue": scheduled - queued - loading,
            "prefix_load": loading,
            "prefill": first - scheduled - in_prefill,
            "decode": self.last_token_ns - first - in_decode,
            "preempted": in_prefill + in_decode,
        }

    @cached_property
    def duration_ns(self) -> int:
        return int(self.last_token_ns.max()) if self.last_token_ns.size else 0

    def good(self, slo_ms: Mapping[str, float]) -> NDArray[np.bool_]:
        """Which completed requests meet every limit (keys ttft, tpot, e2el); one token counts as a TPOT of 0."""
        met = np.ones(self.arrival_ns.size, dtype=np.bool_)
        for name, limit_ms in slo_ms.items():
            value = {"ttft": self.ttft_ns, "tpot": np.nan_to_num(self.tpot_ns), "e2el": self.e2el_ns}[name]
            met &= value <= limit_ms * 1e6
        return met


Weighted = tuple[Int64, NDArray[np.integer[Any]]]
"""Values and how often each counts."""

MOST_BINS = 1 << 20


def weighted_percentiles(parts: Sequence[Weighted], percentiles: Sequence[float]) -> list[float]:
    """`numpy.percentile(numpy.repeat(values, weights), percentiles)`, without the repetition and without a sort.

    A histogram finds the bins in which the ranks lie; only what is in those bins is then sorted.
    """
    largest = max(int(values.max()) for values, _ in parts if values.size)
    shift = max(largest.bit_length() - MOST_BINS.bit_length() + 1, 0)
    counts = np.zeros((largest >> shift) + 1)
    for values, weights in parts:
        counts += np.bincount(values >> shift, weights=weights, minlength=counts.size)
    upto = np.cumsum(counts)  # exact: whole numbers far below 2**53
    total = int(upto[-1])
    positions = [q / 100 * (total - 1) for q in percentiles]
    ranks = sorted({rank for p in positions for rank in (int(p), min(int(p) + 1, total - 1))})
    found: dict[int, int] = {}
    for chosen, (values, weights) in _bins_of(ranks, parts, shift, upto).items():
        order = np.argsort(values)
        within = np.cumsum(weights[order]) + (int(upto[chosen - 1]) if chosen else 0)
        for rank in ranks:
            if rank not in found and rank < within[-1]:
                found[rank] = int(values[order[np.searchsorted(within, rank, side="right")]])
    return [_between(found[int(p)], found[min(int(p) + 1, total - 1)], p - int(p)) for p in positions]


def _bins_of(
    ranks: Sequence[int], parts: Sequence[Weighted], shift: int, upto: Float64
) -> dict[int, Weighted]:
    """What lies in the bins that hold the ranks, by ascending bin."""
    bins = sorted({int(b) for b in np.searchsorted(upto, ranks, side="right")})
    result = {}
    for chosen in bins:
        inside = [(values >> shift) == chosen for values, _ in parts]
        pairs = list(zip(parts, inside, strict=True))
        values = np.concatenate([part[0][mask] for part, mask in pairs])
        result[chosen] = values, np.concatenate([part[1][mask] for part, mask in pairs])
    return result


def _between(low: int, high: int, part: float) -> float:
    """NumPy's linear interpolation, which is exact at both ends."""
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def latency_statistics(name: str, values_ns: Int64 | Float64) -> dict[str, float | None]:
    """Mean, median, std and percentiles of a latency, keyed as in a result file [ms]; None where there are none."""
    keys = [
        f"mean_{name}_ms",
        f"median_{name}_ms",
        f"std_{name}_ms",
        *(f"p{q}_{name}_ms" for q in PERCENTILES),
    ]
    if not values_ns.size:
        return dict.fromkeys(keys)
    quantiles = np.percentile(values_ns, [50, *PERCENTILES])
    numbers = [values_ns.mean(), quantiles[0], values_ns.std(), *quantiles[1:]]
    return {key: float(number) / 1e6 for key, number in zip(keys, numbers, strict=True)}


def itl_statistics(replicas: Sequence[StepColumns]) -> dict[str, float | None]:
    """The same of the gaps between tokens, pooled over all requests: each step's time once per decode."""
    parts = [(log.step_ns, log.decodes_of_steps()) for log in replicas]
    parts += [(log.resumed_gaps_ns, np.ones_like(log.resumed_gaps_ns)) for log in replicas]
    total = sum(int(weights.sum()) for _, weights in parts)
    if total == 0:
        return latency_statistics("itl", np.zeros(0))
    mean = sum(int(gaps @ weights) for gaps, weights in parts) / total
    variance = sum(float(weights @ np.square(gaps - mean)) for gaps, weights in parts) / total
    quantiles = weighted_percentiles(parts, [50, *PERCENTILES])
    keys = ["mean_itl_ms", "median_itl_ms", "std_itl_ms", *(f"p{q}_itl_ms" for q in PERCENTILES)]
    numbers = [mean, quantiles[0], math.sqrt(variance), *quantiles[1:]]
    return {key: number / 1e6 for key, number in zip(keys, numbers, strict=True)}


def peak_concurrency(start_ns: Int64, end_ns: Int64) -> int:
    """Most intervals [start, end) that overlap."""
    if not start_ns.size:
        return 0
    starts, ends = np.sort(start_ns), np.sort(end_ns)
    ended = np.searchsorted(ends, starts, side="right")
    return int((np.arange(1, starts.size + 1) - ended).max())


def peak_output_tokens_per_s(requests: Requests, replicas: Sequence[StepColumns]) -> float:
    """Most tokens in any second that starts at a whole second of the run."""
    seconds = int(requests.duration_ns // 1_000_000_000) + 1
    first = np.bincount(
        requests.columns["first_token_ns"][requests.completed] // 1_000_000_000, minlength=seconds
    )
    counts = first.astype(np.float64)
    for log in replicas:
        ends_s = log.step_ends_ns() // 1_000_000_000
        counts += np.bincount(ends_s, weights=log.decodes_of_steps(), minlength=seconds)
        counts += np.bincount(log.resumed_ns // 1_000_000_000, minlength=seconds)
    return float(counts.max())


def kv_usage(replicas: Sequence[StepColumns], num_blocks: int, duration_ns: int) -> tuple[float, float]:
    """Mean over time and replicas, and peak, of the share of KV blocks held; linear within a row."""
    if not duration_ns:
        return 0.0, 0.0
    held = sum(float(log.row_ns @ (log.first_used_blocks + log.last_used_blocks)) / 2 for log in replicas)
    peak = max((int(log.last_used_blocks.max()) for log in replicas if log.steps.size), default=0)
    return held / (num_blocks * duration_ns * len(replicas)), peak / num_blocks


def fragmentation(log: StepColumns, num_blocks: int) -> Float64:
    """External fragmentation of each row: (free - largest request that could be placed) / free; 0 with none free."""
    free = num_blocks - log.first_used_blocks
    return np.divide(free - log.largest_free, free, out=np.zeros(free.size), where=free > 0)


def memory_statistics(
    replicas: Sequence[StepColumns], num_blocks: int, block_size: int
) -> dict[str, float | None]:
    """How well held KV memory is used, over time and replicas while they run; None where nothing ran.

    kv_internal_waste_mean    share of the tokens' room in held blocks without a token in it
    kv_fragmentation_mean, kv_fragmentation_peak    external fragmentation
    """
    busy = sum(int(log.row_ns.sum()) for log in replicas)
    held = sum(float(log.row_ns @ log.first_used_blocks) for log in replicas) * block_size
    stored = sum(float(log.row_ns @ log.stored_tokens) for log in replicas)
    rows = [fragmentation(log, num_blocks) for log in replicas]
    weighted = sum(float(log.row_ns @ row) for log, row in zip(replicas, rows, strict=True))
    return {
        "kv_internal_waste_mean": 1 - stored / held if held else None,
        "kv_fragmentation_mean": weighted / busy if busy else None,
        "kv_fragmentation_peak": max((float(row.max()) for row in rows if row.size), default=None),
    }


def padding(replicas: Sequence[StepColumns]) -> dict[str, float | int]:
    """Tokens that padded batches computed for nobody, and their share of all that was computed."""
    padded = sum(log.padded_tokens for log in replicas)
    own = sum(int(log.prefill_tokens.sum()) + int(log.decodes @ log.steps) for log in replicas)
    return {"padded_tokens": padded, "share": padded / (padded + own) if padded else 0.0}


def waiting_at(requests: Requests, replica: int, times_ns: Int64, running: Int64) -> Int64:
    """Length of a replica's queue at times at which it runs `running` sequences."""
    columns = requests.columns
    there = (columns["replica"] == replica) & requests.completed
    arrived = np.searchsorted(np.sort(columns["arrival_ns"][there]), times_ns, side="right")
    gone = np.searchsorted(np.sort(columns["last_token_ns"][there]), times_ns, side="right")
    return arrived - gone - running


def serving_metrics(
    requests: Requests, replicas: Sequence[StepColumns], slo_ms: Mapping[str, float]
) -> dict[str, float | int | None]:
    """The measured part of a result file of `vllm bench serve`."""
    duration_s = requests.duration_ns / 1e9
    completed = int(requests.completed.sum())
    inputs, outputs = int(requests.input_tokens.sum()), int(requests.output_tokens.sum())

    def per_second(count: float) -> float:
        return count / duration_s if duration_s else 0.0

    return {
        "duration": duration_s,
        "completed": completed,
        "failed": len(requests) - completed,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": per_second(completed),
        "request_goodput": per_second(int(requests.good(slo_ms).sum())) if slo_ms else None,
        "output_throughput": per_second(outputs),
        "total_token_throughput": per_second(inputs + outputs),
        "max_output_tokens_per_s": peak_output_tokens_per_s(requests, replicas),
        "max_concurrent_requests": peak_concurrency(requests.arrival_ns, requests.last_token_ns),
        **latency_statistics("ttft", requests.ttft_ns),
        **latency_statistics("tpot", requests.tpot_ns[~np.isnan(requests.tpot_ns)]),
        **itl_statistics(replicas),
        **latency_statistics("e2el", requests.e2el_ns),
    }


def stage_statistics(requests: Requests) -> dict[str, dict[str, float | None]]:
    """Mean and P99 of each stage [ms], and its share of all time spent."""
    total = int(requests.e2el_ns.sum())
    return {
        name: {
            "mean": float(values.mean()) / 1e6 if values.size else None,
            "p99": float(np.percentile(values, 99)) / 1e6 if values.size else None,
            "share": int(values.sum()) / total if total else None,
        }
        for name, values in requests.stages_ns.items()
    }
