"""The plots of the memory section: who holds the KV memory, what is wasted, what is found again."""

from __future__ import annotations

import numpy as np

from dashboards import figures
from dashboards.content import Content
from dashboards.memory_series import COLUMNS, hit_rate, memory_bands
from dashboards.numerals import percent
from dashboards.page import Plot
from dashboards.result_files import Run
from dashboards.series import COARSER, Band

BUCKETS = 240
MOST_ARMS = 4
"""Beyond these an arm has no occupancy figure of its own."""

PANELS = {
    "stored": "Tokens stored [% of KV]",
    "waste": "Room wasted in held blocks [% of KV]",
    "cached": "Prefix cache, held by nobody [% of KV]",
    "fragmentation": "External fragmentation F [%]",
    "hit_rate": "Prefix cache: tokens found [% of those looked up]",
}
OWNERS = {
    "stored": "tokens of running sequences",
    "waste": "wasted inside held blocks",
    "cached": "prefix cache",
}


def occupancy(content: Content) -> list[Plot]:
    """Who holds the KV memory over time, a figure an arm; and the same beside fragmentation and hits, over the arms."""
    runs = {
        name: run
        for name, run in content.runs.items()
        if run.timeline["t_s"].size and all(column in run.timeline for column in COLUMNS)
    }
    if not runs:
        return []
    end_s = max(max(run.summary.duration, float(run.timeline["t_s"].max())) for run in runs.values())
    if end_s <= 0:
        return []
    bands = {name: _bands(run, end_s) for name, run in runs.items()}
    plots = [
        _owners(i, f": {name}" if len(bands) > 1 else "", bands[name], end_s)
        for i, name in enumerate(bands)
        if i < MOST_ARMS
    ]
    panels = {key: title for key, title in PANELS.items() if any(_shows(b, key) for b in bands.values())}
    plots.append(
        Plot(
            "memory",
            "KV memory over time",
            figures.timeline(bands, end_s, panels),
            [_words(name, run) for name, run in runs.items()],
            "F = (free - largest free run) / free: what of the free memory one request could not have; 0 for paged "
            "blocks, any of which serves. Prefix cache held by nobody: blocks that are free, and still findable.",
        )
    )
    return plots


def _bands(run: Run, end_s: float) -> dict[str, Band]:
    bands = memory_bands(run.timeline, run.usable_blocks, run.block_size, end_s, BUCKETS)
    found = hit_rate(run.timeline, end_s, BUCKETS // COARSER)
    return bands if found is None else {**bands, "hit_rate": found}


def _shows(bands: dict[str, Band], key: str) -> bool:
    return key in bands and bool(np.nan_to_num(bands[key].high).any() or key == "stored")


def _owners(index: int, title: str, bands: dict[str, Band], end_s: float) -> Plot:
    parts = {OWNERS[key]: bands[key] for key in OWNERS}
    means = {name: float(share.mean.mean()) / 100 for name, share in parts.items()}
    return Plot(
        f"occupancy-{index}",
        f"KV memory by owner{title}",
        figures.stacked_shares(parts, end_s),
        [f"Means over the run: {', '.join(f'{name} {percent(mean)}' for name, mean in means.items())}."],
        "Shares of the KV memory of all replicas; what is missing to 100% is free and holds nothing.",
    )


def _words(name: str, run: Run) -> str:
    sim = run.summary.sim
    hit = "" if sim.prefix_hit_rate is None else f", prefix hit rate {percent(sim.prefix_hit_rate)}"
    used = "" if sim.kv_usage_mean is None else f"{percent(sim.kv_usage_mean)} of the KV in use on average"
    return f"{name}: {used}{hit}, {sim.preemptions:,} preemptions."
