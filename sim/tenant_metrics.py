"""Metrics by tenant, and what each tier's pools held; definitions as in `sim.metrics`.

Rates are over the duration of the whole run, so that those of all tenants add up to those of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.engine.records import Status, StepColumns
from sim.metrics import Requests, latency_statistics
from sim.qos.contract import Contracts
from workloads.trace import Trace


def tenant_metrics(
    requests: Requests,
    trace: Trace,
    slo_ms: Mapping[str, float],
    contracts: Contracts | None,
    *,
    prefix_caching: bool,
) -> dict[str, dict[str, Any]]:
    """By the name of each tenant.

    `prefix_hit_rate` is the share of the prompt tokens of completed requests that were found in the cache when they
    were first admitted; `preemptions` are those of completed requests.
    """
    duration_s = requests.duration_ns / 1e9
    found = {}
    for code, name in enumerate(trace.tenant_names):
        mine = trace.tenant == code
        own = Requests({column: values[mine] for column, values in requests.columns.items()})
        tier = None if contracts is None else contracts.tiers[contracts.tier_of[code]].name
        found[name] = {"tier": tier, **_of_one(own, slo_ms, duration_s, prefix_caching=prefix_caching)}
    return found


def _of_one(
    own: Requests, slo_ms: Mapping[str, float], duration_s: float, *, prefix_caching: bool
) -> dict[str, Any]:
    def per_second(count: int) -> float:
        return count / duration_s if duration_s else 0.0

    completed = int(own.completed.sum())
    statuses = Counter(own.columns["status"].tolist())
    tokens = int(own.input_tokens.sum())
    cached = int(own.columns["cached_tokens"][own.completed].sum())
    return {
        "num_prompts": len(own),
        "completed": completed,
        "failed": len(own) - completed,
        "rejected": {s.name.lower(): statuses[s] for s in Status if s and statuses[s]},
        "total_input_tokens": tokens,
        "total_output_tokens": int(own.output_tokens.sum()),
        "request_throughput": per_second(completed),
        "request_goodput": per_second(int(own.good(slo_ms).sum())) if slo_ms else None,
        "output_throughput": per_second(int(own.output_tokens.sum())),
        **latency_statistics("ttft", own.ttft_ns),
        **latency_statistics("tpot", own.tpot_ns[~np.isnan(own.tpot_ns)]),
        **latency_statistics("e2el", own.e2el_ns),
        "preemptions": int(own.columns["preemptions"][own.completed].sum()),
        "prefix_hit_rate": cached / tokens if prefix_caching and tokens else None,
    }


def tier_metrics(
    contracts: Contracts,
    replicas: Sequence[StepColumns],
    num_blocks: int,
    max_num_seqs: int,
    duration_ns: int,
) -> dict[str, dict[str, Any]]:
    """By the name of each tier: what it is promised on each replica, and what its pools held.

    `kv_blocks_mean` is over time and replicas, linear within a row of the log; peaks are those of one replica.
    """
    amounts = contracts.amounts(num_blocks)
    seats = contracts.amounts(max_num_seqs, least=1)
    found = {}
    for lane, (tier, blocks, places) in enumerate(zip(contracts.tiers, amounts, seats, strict=True)):
        first = [log.first_pool_blocks[:, lane] for log in replicas]
        last = [log.last_pool_blocks[:, lane] for log in replicas]
        held = sum(float(log.row_ns @ (a + b)) / 2 for log, a, b in zip(replicas, first, last, strict=True))
        peak = max((int(values.max()) for values in (*first, *last) if values.size), default=0)
        found[tier.name] = {
            "guaranteed_blocks": blocks.guarantee,
            "most_blocks": blocks.most,
            "guaranteed_seats": places.guarantee,
            "most_seats": places.most,
            "kv_blocks_mean": held / (duration_ns * len(replicas)) if duration_ns else 0.0,
            "kv_blocks_peak": peak,
            "borrowed_blocks_peak": max(peak - blocks.guarantee, 0),
        }
    return found
