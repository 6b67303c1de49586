"""What a server counted during a run: the difference of two scrapes of vLLM's /metrics.

Lie `metrics_before.txt` and `metrics_after.txt` beside a result file, they belong to it. AIPerf scrapes by itself
and writes `server_metrics_export.json`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from workloads.errors import TraceFormatError
from workloads.readers.source import parse_object, read_text

BEFORE: Final = "metrics_before.txt"
AFTER: Final = "metrics_after.txt"
AIPERF: Final = "server_metrics_export.json"

_TTFT: Final = "vllm:time_to_first_token_seconds"
_TPOT: Final = "vllm:request_time_per_output_token_seconds"
_E2EL: Final = "vllm:e2e_request_latency_seconds"
_QUERIES: Final = "vllm:prefix_cache_queries"
_HITS: Final = "vllm:prefix_cache_hits"
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)(?:\s+\d+)?$")


@dataclass(frozen=True)
class ServerFigures:
    """Sums over the requests that a server finished during a run, engines together.

    requests        requests with a first token
    finished        requests that ended
    ttft_s, e2el_s  sums of latencies as the API server sees them
    tpot_s          sum of each request's time per token; a request of one token adds 0, as vLLM counts
    queried_tokens, hit_tokens      prompt tokens looked up, and found, in the prefix cache
    """

    requests: int
    finished: int
    ttft_s: float
    tpot_s: float
    e2el_s: float
    queried_tokens: float
    hit_tokens: float

    @property
    def hit_share(self) -> float:
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    @classmethod
    def of(cls, counts: Mapping[str, float]) -> Self | None:
        """From counts by their names; None where a server of another kind was scraped."""
        if f"{_TTFT}_count" not in counts or f"{_E2EL}_count" not in counts:
            return None
        return cls(
            requests=round(counts[f"{_TTFT}_count"]),
            finished=round(counts[f"{_E2EL}_count"]),
            ttft_s=counts[f"{_TTFT}_sum"],
            tpot_s=counts.get(f"{_TPOT}_sum", 0.0),
            e2el_s=counts[f"{_E2EL}_sum"],
            queried_tokens=counts.get(f"{_QUERIES}_total", 0.0),
            hit_tokens=counts.get(f"{_HITS}_total", 0.0),
        )


def figures_beside(path: Path) -> ServerFigures | None:
    """Return what the scrapes beside a result file say; None where there are none."""
    before, after = path.with_name(BEFORE), path.with_name(AFTER)
    if not (before.is_file() and after.is_file()):
        return None
    start, end = _samples(before), _samples(after)
    counts = {name: value - start.get(name, 0.0) for name, value in end.items()}
    if any(value < 0 for value in counts.values()):
        name = next(name for name, value in counts.items() if value < 0)
        raise TraceFormatError(
            after, None, f"{name} is less than in {before.name}; the server was started anew between the two"
        )
    return ServerFigures.of(counts)


def aiperf_figures_beside(path: Path) -> ServerFigures | None:
    """Return what AIPerf scraped during its profiling phase; None where it did not."""
    export = path.with_name(AIPERF)
    if not export.is_file():
        return None
    counts: dict[str, float] = defaultdict(float)
    metrics = parse_object(export, None, read_text(export)).get("metrics")
    for name, metric in (metrics if isinstance(metrics, dict) else {}).items():
        for stats in _stats(metric):
            for ours, theirs in (("count", "count"), ("sum", "sum"), ("total", "total")):
                if isinstance(stats.get(theirs), int | float):
                    counts[f"{name}_{ours}"] += stats[theirs]
    return ServerFigures.of(counts)


def _stats(metric: object) -> list[dict[str, Any]]:
    series = metric.get("series") if isinstance(metric, dict) else None
    found = [one.get("stats") for one in series or () if isinstance(one, dict)]
    return [stats for stats in found if isinstance(stats, dict)]


def _samples(path: Path) -> dict[str, float]:
    """Sums, counts and counters by name, over all label sets; buckets and gauges are left out."""
    found: dict[str, float] = defaultdict(float)
    for line, text in enumerate(read_text(path).splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        match = _SAMPLE.match(text.strip())
        if match is None:
            raise TraceFormatError(
                path, line, "not a line of a Prometheus scrape: a name and a number are expected"
            )
        if not match[1].endswith(("_sum", "_count", "_total")):
            continue
        try:
            found[match[1]] += float(match[2])
        except ValueError:
            raise TraceFormatError(path, line, f"{match[1]} is {match[2]}; a number is expected") from None
    return found
