"""The static report: results in, one HTML file out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dashboards import basis, charts, link_charts, memory_charts, memory_tables, tables, words
from dashboards.content import Content, read_directories
from dashboards.page import Plot, legend, page, plot_html, section, text
from workloads.errors import ConfigError

REPORT = "report.html"


def render(directory: Path) -> Path:
    """Write report.html into a result directory: of a run, a comparison or a plan."""
    return write_report([directory], directory / REPORT)


def write_report(directories: Sequence[Path], target: Path) -> Path:
    """Write one page about a result directory, or about several runs side by side."""
    document = report_html(read_directories(directories))
    try:
        _write_whole(target, document)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def report_html(content: Content) -> str:
    """The page, from top to bottom in the order in which a reader asks."""
    names = list(content.runs)
    switches = legend(names)
    return page(
        basis.title(content),
        [
            f"<header><h1>{text(basis.title(content))}</h1>",
            f"<p class='muted'>{text(basis.subtitle(content))}</p></header>",
            "<main>",
            _verdict(content),
            _numbers(content),
            _flags(content),
            section(
                "Latencies",
                switches,
                _grid(charts.latencies(content)),
                basis.one_replication(content),
            ),
            section("Where the time goes", *map(plot_html, charts.stages(content))),
            section("Over time", *([switches] if names else []), *map(plot_html, charts.over_time(content))),
            _memory(content),
            section("Capacity plan", basis.plan_facts(content), _grid(charts.plan(content))),
            section("What this stands on", basis.facts(content), basis.definitions()),
            "</main>",
        ],
    )


def _grid(plots: Sequence[Plot]) -> str:
    return f'<div class="grid">{"".join(map(plot_html, plots))}</div>' if plots else ""


def _memory(content: Content) -> str:
    return section(
        "KV memory",
        *map(plot_html, memory_charts.occupancy(content)),
        memory_tables.tenants(content),
        memory_tables.tiers(content),
        memory_tables.compression(content),
        _grid(memory_charts.prefetch_bars(content)),
        _grid(memory_charts.access_maps(content)),
        link_charts.link_table(content),
        _grid(link_charts.link_use(content)),
    )


def _verdict(content: Content) -> str:
    paragraphs = "".join(f"<p>{text(paragraph)}</p>" for paragraph in words.verdict(content))
    return f'<section class="verdict"><h2>Verdict</h2>{paragraphs}</section>'


def _numbers(content: Content) -> str:
    if not content.arms:
        return ""
    if content.comparison is None and len(content.arms) == 1:
        return section("The numbers", tables.run_tables(content.arms[0]))
    return section("The arms", tables.arms_table(content), basis.settings(content), basis.cautions(content))


def _flags(content: Content) -> str:
    comparison = content.comparison
    if comparison is None or comparison.winner is None:
        return ""
    notes = "".join(f"<li>{text(note)}</li>" for note in comparison.engine_notes)
    line = comparison.engine_flags
    return section(
        "The winner as engine flags",
        f"<p>For {text(comparison.winner)}:</p>" if line or notes else "",
        f'<pre class="wrap"><code>vllm serve ... {text(line)}</code></pre>' if line else "",
        f"<ul>{notes}</ul>" if notes else "",
    )


def _write_whole(target: Path, document: str) -> None:
    """Put the file in place at once, so that nobody ever reads half a page."""
    handle, scratch = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(document)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
