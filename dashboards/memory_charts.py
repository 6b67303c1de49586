"""The plots of the memory section: who holds the KV memory, what is wasted, what is found again."""

from __future__ import annotations

from itertools import pairwise

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
FATES = {
    "demand_bytes": "demanded",
    "useful_bytes": "useful",
    "late_bytes": "late",
    "wasted_bytes": "wasted",
    "evicting_bytes": "evicting",
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


def access_maps(content: Content) -> list[Plot]:
    """Where decode steps read KV: layer groups against the distance from the end [O4]."""
    plots: list[Plot] = []
    for name, run in content.runs.items():
        if run.kv_access is None or not run.kv_access["page_reads"].sum():
            continue
        group, distance = (run.kv_access[key].astype(np.int64) for key in ("group", "from_tokens"))
        bins = np.unique(distance)
        reads = np.zeros((int(group.max()) + 1, bins.size))
        np.add.at(reads, (group, np.searchsorted(bins, distance)), run.kv_access["page_reads"])
        share = reads * 100 / np.maximum(reads.sum(axis=1, keepdims=True), 1)
        far = float(reads[:, bins >= 128].sum() / reads.sum())
        ends = [*(f"{low:,} to {high - 1:,}" for low, high in pairwise(bins)), f"{bins[-1]:,} and more"]
        plots.append(
            Plot(
                f"access-{len(plots)}",
                f"KV reads by layer and distance{f': {name}' if len(content.runs) > 1 else ''}",
                figures.heat_map(
                    ends,
                    [str(index) for index in range(reads.shape[0])],
                    share,
                    ("tokens back from the end", "group of layers", "reads [%]"),
                ),
                [f"{percent(far)} of all page reads reach 128 tokens or more back."],
                "Each row adds up to 100%: how far back a group of layers reads. The access pattern is the "
                "scenario's (kv_access), an assumption or a recording.",
            )
        )
    return plots


def prefetch_bars(content: Content) -> list[Plot]:
    """What became of the bytes that each arm prefetched, and what its steps had to wait for."""
    accounts = {
        name: run.summary.sim.prefetch for name, run in content.runs.items() if run.summary.sim.prefetch
    }
    if not accounts:
        return []
    fates = {key: title for key, title in FATES.items() if any(a.get(key) for a in accounts.values())}
    bars = {
        name: {title: float(account.get(key) or 0) / 1e9 for key, title in fates.items()}
        for name, account in accounts.items()
    }
    return [
        Plot(
            "prefetch",
            "Prefetched and demanded KV",
            figures.grouped_bars(bars, "GB"),
            [
                f"{name}: {percent(float(account['hit_rate']))} of the reads found their page in HBM."
                for name, account in accounts.items()
                if isinstance(account.get("hit_rate"), float)
            ],
            "Useful: read after it had come. Late: a step waited for the rest. Wasted: gone unread. Evicting: "
            "pushed out a page that was then demanded.",
        )
    ]


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
        figures.stacked(parts, end_s, "% of KV", whole=100),
        [f"Means over the run: {', '.join(f'{name} {percent(mean)}' for name, mean in means.items())}."],
        "Shares of the KV memory of all replicas; what is missing to 100% is free and holds nothing.",
    )


def _words(name: str, run: Run) -> str:
    sim = run.summary.sim
    hit = "" if sim.prefix_hit_rate is None else f", prefix hit rate {percent(sim.prefix_hit_rate)}"
    used = "" if sim.kv_usage_mean is None else f"{percent(sim.kv_usage_mean)} of the KV in use on average"
    return f"{name}: {used}{hit}, {sim.preemptions:,} preemptions."
