"""The page of a recording of KV accesses: where each layer reads, and what it shares with the layer before [O4, K9].

Made from the recording alone.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from dashboards import figures
from dashboards.numerals import percent
from dashboards.page import Plot, facts_list, page, plot_html, section, text
from sim.kv.access.heat_map import HeatCounter, HeatMap
from sim.kv.access.reads import Float64, Reads
from sim.kv.access.recording import Header, Recording
from sim.kv.access.recording_files import read_recording
from sim.kv.access.reuse import FAR_TOKENS, PUBLISHED, Reuse, Share, page_map
from workloads.replacing import replacing

_MOST_COLUMNS = 240
"""Of the map of pages; beyond these, neighbours share a column."""


def render(recording: Path) -> Path:
    """Write the page beside a recording, as NAME.html; returns the file."""
    target = recording.with_suffix(".html")
    found = read_recording(recording)
    with replacing(target, force=True) as draft:
        draft.write_text(access_html(recording.name, found), encoding="utf-8")
    return target


def access_html(name: str, recording: Recording) -> str:
    """The page, from top to bottom."""
    header, reuse = recording.header, Reuse(recording)
    title = f"KV accesses of {name}"
    facts = {
        "source": header.source or "not said",
        "steps": f"{reuse.steps}, from {header.context_tokens:,} tokens on",
        "layers": header.num_layers // header.heads,
        "heads": "all of a layer together" if header.heads == 1 else f"{header.heads} apart",
        "page": f"{header.block_size} tokens",
    }
    plots = [_distances(recording, reuse), _pages(recording)]
    if header.num_layers > header.heads:
        plots.append(_shared(reuse))
    return page(
        title,
        [
            f"<header><h1>{text(title)}</h1></header><main>",
            section("The recording", facts_list(facts)),
            section("Where steps read", *map(plot_html, plots[:2])),
            section("What layers share", *map(plot_html, plots[2:])),
            "</main>",
        ],
    )


def _distances(recording: Recording, reuse: Reuse) -> Plot:
    header, heat = recording.header, _heat(recording)
    mass = heat.mass * 100 / np.maximum(heat.mass.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    starts = heat.from_tokens
    ends = [*(f"{low:,} to {high - 1:,}" for low, high in pairwise(starts)), f"{starts[-1]:,} and more"]
    return Plot(
        "access-distance",
        "Attention mass by layer and distance",
        figures.heat_map(
            ends,
            _layers(header),
            mass,
            ("tokens back from the end", _rows(header), "mass of the pages read [%]"),
        ),
        [f"{percent(reuse.far_share)} of all page reads reach {FAR_TOKENS} tokens or more back."],
        "Each row adds up to 100%. A page lies as far back as its distance in pages times their size.",
    )


def _pages(recording: Recording) -> Plot:
    header, mass = recording.header, page_map(recording)
    width = -(-mass.shape[1] // _MOST_COLUMNS)
    starts = np.arange(0, mass.shape[1], width)
    shown: Float64 = np.add.reduceat(mass, starts, axis=1) * 100
    return Plot(
        "access-pages",
        "Attention mass by layer and page",
        figures.heat_map(
            [f"{start * header.block_size:,}" for start in starts],
            _layers(header),
            shown,
            (
                "first token of the page" if width == 1 else f"first token of {width} pages",
                _rows(header),
                "mass [%]",
            ),
        ),
        [f"{percent(float(mass.sum() / header.num_layers))} of the mass is on pages that were read."],
        "Mean over the steps, from the start of the sequence on the left to its end.",
    )


def _shared(reuse: Reuse) -> Plot:
    header, across = reuse.header, reuse.cross_layer
    names = _layers(header)[header.heads :]
    shares = [layer.layer for layer in reuse.layers[header.heads :]]
    bars = {
        "read": dict(zip(names, (_percent(share.measured) for share in shares), strict=True)),
        "by chance": dict(zip(names, (_percent(share.chance) for share in shares), strict=True)),
    }
    figure = figures.grouped_bars(bars, "% of the pages read")
    figure.update_xaxes(type="category", title_text=_rows(header))
    figure.update_layout(showlegend=True)
    verdict, why = across.verdict(header)
    published = ", ".join(f"{name} {percent(share)}" for name, share in PUBLISHED.items())
    return Plot(
        "access-shared",
        "Pages that the layer before read too",
        figure,
        [f"On average {_words(across.average)}. Published: {published}: {verdict} ({why})."],
        "Of N pages, a random set of a has a/N of any other: what exceeds that is reuse.",
    )


def _heat(recording: Recording) -> HeatMap:
    header = recording.header
    counter = HeatCounter(header.num_layers, header.block_size)
    last = np.array([header.pages(step) - 1 for step in range(recording.steps)])
    counter.add(Reads(recording.layer, recording.page, recording.weight), last[recording.step])
    return counter.map()


def _layers(header: Header) -> list[str]:
    if header.heads == 1:
        return [str(layer) for layer in range(header.num_layers)]
    return [f"{row // header.heads}.{row % header.heads}" for row in range(header.num_layers)]


def _rows(header: Header) -> str:
    return "layer" if header.heads == 1 else "layer.head"


def _percent(share: float | None) -> float:
    return float("nan") if share is None else share * 100


def _words(share: Share) -> str:
    if share.measured is None or share.chance is None:
        return "nothing was read"
    return f"{percent(share.measured)}, by chance {percent(share.chance)}"
