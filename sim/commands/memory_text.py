"""What a run says of its KV memory beside how much was held: one line for each mechanism that acted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def memory_lines(own: Mapping[str, Any]) -> Iterator[str]:
    """Lines for what a summary holds under `sim`."""
    waste, lost = own["kv_internal_waste_mean"], own["kv_fragmentation_mean"]
    if waste is not None and (waste >= 0.05 or lost):
        yield (
            f"allocator: {waste:.1%} of the room in what is held has no token in it; external fragmentation "
            f"{lost:.1%} on average, {own['kv_fragmentation_peak']:.1%} at most"
        )
    if own["prefix_hit_rate"] is not None:
        yield f"prefix cache: {own['prefix_hit_rate']:.1%} of the prompt tokens found" + _by_tier(own)
    prefetch = own.get("prefetch")
    if prefetch is not None and prefetch["hit_rate"] is not None:
        kinds = ("demand", "useful", "late", "wasted", "evicting")
        moved = (f"{kind} {prefetch[f'{kind}_bytes'] / 1e9:.2f}" for kind in kinds)
        yield f"KV pages: {prefetch['hit_rate']:.1%} of the reads found theirs in HBM; GB {', '.join(moved)}"


def _by_tier(own: Mapping[str, Any]) -> str:
    tiers = own.get("kv_tiers")
    if tiers is None:
        return ""
    return f", {tiers['reloaded_tokens']:,} tokens of them brought back from host memory or disk"
