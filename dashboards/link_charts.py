"""The plots of who used which link when: transfers beside the steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dashboards import figures, tables
from dashboards.content import Content
from dashboards.numerals import number, percent
from dashboards.page import Plot
from dashboards.result_files import Run
from dashboards.series import Band, band, total_over_replicas

BUCKETS = 240
MOST_PLOTS = 12
KINDS = {
    "hbm": "HBM",
    "pcie_h2d": "PCIe, host to device",
    "pcie_d2h": "PCIe, device to host",
    "nvlink_out": "NVLink, out",
    "nvlink_in": "NVLink, in",
    "nic_out": "network, out",
    "nic_in": "network, in",
    "disk": "disk",
}


def link_use(content: Content) -> list[Plot]:
    """Transfers over time by link and owner, a figure for each run and link that any used."""
    plots: list[Plot] = []
    for name, run in content.runs.items():
        if run.links is None or not run.links.numbers["t_s"].size:
            continue
        for kind in dict.fromkeys(run.links.names["link"].tolist()):
            plots.append(_link(len(plots), name if len(content.runs) > 1 else "", run, str(kind)))
    return plots[:MOST_PLOTS]


def link_table(content: Content) -> str:
    """How much of each link was used, in all and by owner."""
    return "".join(
        tables.facts_table(
            f"Links{f': {name}' if len(content.runs) > 1 else ''}", _rows(run.summary.sim.links)
        )
        for name, run in content.runs.items()
        if run.summary.sim.links
    )


def _rows(links: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, str]]:
    rows = {}
    for kind, use in links.items():
        owners = use.get("by_owner")
        parts = owners if isinstance(owners, Mapping) else {}
        for owner, part in {"in all": use, **parts}.items():
            rows[f"{KINDS.get(kind, kind)}, {owner}"] = {
                "GB moved": number(float(part.get("bytes_total", 0)) / 1e9),
                "busy [s]": number(float(part.get("busy_s", 0))),
                "utilization": percent(float(part.get("utilization", 0))),
                "GB/s while busy": number(float(part.get("effective_bytes_per_s", 0)) / 1e9),
            }
    return rows


def _link(index: int, arm: str, run: Run, kind: str) -> Plot:
    assert run.links is not None
    numbers, names = run.links.numbers, run.links.names
    end_s = max(run.summary.duration, float(numbers["t_s"].max()))
    edges = np.linspace(0.0, end_s, BUCKETS + 1)
    parts: dict[str, Band] = {}
    for owner in dict.fromkeys(names["owner"][names["link"] == kind].tolist()):
        rows = (names["link"] == kind) & (names["owner"] == owner)
        times, totals = total_over_replicas(
            numbers["t_s"][rows], numbers["replica"][rows], numbers["bytes_per_s"][rows] / 1e9
        )
        parts[str(owner)] = band(times, totals, edges)
    moved = {owner: float(part.mean.mean()) * end_s for owner, part in parts.items()}
    title = f"{KINDS.get(kind, kind)}{f': {arm}' if arm else ''}"
    return Plot(
        f"link-{index}",
        title,
        figures.stacked(parts, end_s, "GB/s"),
        [f"Moved: {', '.join(f'{owner} {number(total)} GB' for owner, total in moved.items())}."],
        "By owner, summed over the replicas; `step` is the engine's own traffic, as a mean over points of the run.",
    )
