"""A trace in figures: what `servetwin trace info` shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.prefixes import infinite_cache_hit_rate
from workloads.trace import NS_PER_S, Trace


def summarise(trace: Trace) -> dict[str, Any]:
    """Return plain figures for JSON; a figure that the trace does not have is None."""
    duration_s = trace.duration_ns / NS_PER_S if trace.has_arrivals else None
    gaps_s = np.diff(trace.arrival_ns) / NS_PER_S if trace.has_arrivals else np.zeros(0)
    spread = gaps_s.std() / gaps_s.mean() if gaps_s.any() else None
    hashes = trace.hashes
    sessions = np.unique(trace.session[trace.session >= 0]).size
    return {
        "requests": len(trace),
        "failed": trace.failed,
        "input_tokens": int(trace.input_tokens.sum()),
        "output_tokens": int(trace.output_tokens.sum()),
        "duration_s": duration_s,
        "request_rate": len(trace) / duration_s if duration_s else None,
        "burstiness": float(1 / spread**2) if spread else None,
        "quantiles": {
            "input_tokens": _quantiles(trace.input_tokens),
            "output_tokens": _quantiles(trace.output_tokens),
            "gaps_s": _quantiles(gaps_s) if gaps_s.size else None,
        },
        "length_correlation": _correlation(trace),
        "sessions": sessions or None,
        "waiting": _waiting(trace),
        "tenants": {
            name: int(np.count_nonzero(trace.tenant == code)) for code, name in enumerate(trace.tenant_names)
        },
        "prefix": None
        if hashes is None
        else {
            "block_tokens": hashes.block_tokens,
            "blocks": int(hashes.ids.size),
            "unique_blocks": int(np.unique(hashes.ids).size),
            "infinite_cache_hit_rate": infinite_cache_hit_rate(hashes),
        },
        "warnings": list(trace.warnings),
    }


def _waiting(trace: Trace) -> dict[str, float] | None:
    """Requests that wait for answers: times, rate and gaps count them at the earliest possible."""
    if trace.turns is None or not trace.turns.waiting:
        return None
    waits = trace.turns.predecessor >= 0
    mean_ns = trace.turns.think_ns[waits].mean()
    return {"requests": trace.turns.waiting, "mean_think_s": float(mean_ns) / NS_PER_S}


def _quantiles(values: NDArray[Any]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(values.max()),
    }


def _correlation(trace: Trace) -> float | None:
    """Pearson's, of input and output length; None where one of them does not vary."""
    if len(trace) < 2 or not (np.ptp(trace.input_tokens) and np.ptp(trace.output_tokens)):
        return None
    return float(np.corrcoef(trace.input_tokens, trace.output_tokens)[0, 1])
