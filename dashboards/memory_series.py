"""From the timeline of a run to how its KV memory was used. Arrays in, arrays out; shares in percent."""

from __future__ import annotations

import numpy as np

from dashboards.series import Band, Columns, Float64, band, total_over_replicas

COLUMNS = ("kv_cached_blocks", "kv_waste_tokens", "kv_fragmentation", "prefix_queries", "prefix_hits")
"""Of a timeline, beside those that every run has; runs of older versions lack them."""


def memory_bands(
    timeline: Columns, usable_blocks: int, block_size: int, end_s: float, buckets: int
) -> dict[str, Band]:
    """Tokens stored, room wasted in held blocks, cached blocks that nobody holds, and fragmentation.

    The first three are shares of the KV of all replicas in the timeline and, with what is free and empty, add up to
    all of it. Fragmentation is the mean over the replicas of F = (free - largest free run) / free.
    """
    edges = np.linspace(0.0, end_s, buckets + 1)
    replicas = max(1, np.unique(timeline["replica"]).size)
    whole = usable_blocks * replicas
    waste = timeline["kv_waste_tokens"] / block_size
    values = {
        "stored": (timeline["kv_used_blocks"] - waste) * 100 / whole,
        "waste": waste * 100 / whole,
        "cached": _held_over(timeline, "kv_cached_blocks") * 100 / whole,
        "fragmentation": timeline["kv_fragmentation"] * 100 / replicas,
    }
    return {
        name: band(*total_over_replicas(timeline["t_s"], timeline["replica"], value), edges)
        for name, value in values.items()
    }


def hit_rate(timeline: Columns, end_s: float, buckets: int) -> Band | None:
    """Share of the prompt tokens looked up in each bucket that were found; NaN where none were, None if never."""
    edges = np.linspace(0.0, end_s, buckets + 1)
    queries, hits = (_count_at(timeline, name, edges) for name in ("prefix_queries", "prefix_hits"))
    asked, found = np.diff(queries), np.diff(hits)
    if not asked.any():
        return None
    share = np.divide(found * 100, asked, out=np.full(asked.size, np.nan), where=asked > 0)
    return Band(float(edges[1] - edges[0]), share, share, share)


def _count_at(timeline: Columns, name: str, edges: Float64) -> Float64:
    """What had been counted by each edge, over the replicas; a row counts what happened at its start."""
    times, totals = total_over_replicas(timeline["t_s"], timeline["replica"], timeline[name])
    before = np.append(0.0, totals)[np.searchsorted(times, edges, side="left")]
    before[-1] = totals[-1] if totals.size else 0.0  # the last bucket is closed
    return before


def _held_over(timeline: Columns, name: str) -> Float64:
    """The column, with the value before wherever it is not known; 0 before the first."""
    values = timeline[name].copy()
    order = np.lexsort((timeline["t_s"], timeline["replica"]))
    sorted_values, replica = values[order], timeline["replica"][order]
    known = np.isfinite(sorted_values)
    known[np.append(True, replica[1:] != replica[:-1])] = True  # each replica starts anew
    at = np.maximum.accumulate(np.where(known, np.arange(known.size), 0))
    values[order] = np.nan_to_num(sorted_values[at])
    return values
