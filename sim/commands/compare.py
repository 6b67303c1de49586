"""`servetwin compare`: the same requests under different policies or machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sim.commands.options import NO_OPTIONS, ScenarioOptions, console, progress, put_json, render, say
from sim.errors import ConfigError
from sim.run_directory import json_text, new_directory, write_run
from sim.studies.compare import REPLICATIONS, Comparison
from sim.studies.compare import compare as compare_arms
from sim.studies.pairs import quantity, unit
from sim.studies.statistics import CONFIDENCE

if TYPE_CHECKING:
    from rich.console import Console

COMPARISON = "comparison.json"
_SIDE_BY_SIDE = 3
_SHOWN = (
    "request_goodput",
    "request_throughput",
    "output_throughput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
)


def compare(
    scenario: Path,
    /,
    *,
    vary: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)] = (),
    replications: int = REPLICATIONS,
    metric: str | None = None,
    options: ScenarioOptions = NO_OPTIONS,
) -> None:
    """Compare arms of a scenario on the same requests, with confidence intervals.

    Parameters
    ----------
    scenario
        Scenario file (YAML).
    vary
        What differs, as PATH=A,B (policies.batcher=chunked,dynamic_chunked); repeated, all combinations.
    replications
        Runs of each arm, with requests of other seeds.
    metric
        What decides; by default request_goodput where the scenario has an slo, else mean_e2el_ms.

    """
    options.check(COMPARISON)
    with progress("compare", replications) as advance:
        result = compare_arms(
            scenario,
            vary,
            overrides=options.overrides,
            replications=replications,
            metric=metric,
            seed=options.seed,
            on_run=lambda label, total: advance(label, total=total),
        )
    if options.out is not None:
        with new_directory(options.out, COMPARISON) as directory:
            write_comparison(result, directory)
            _render(directory, asked=options.report)
        say(f"wrote {options.out}")
    if options.json:
        put_json(result.as_json())
    else:
        print_comparison(result)


def write_comparison(result: Comparison, directory: Path) -> None:
    """Write comparison.json and a run directory per arm, of its first replication, into an existing folder."""
    (directory / COMPARISON).write_text(json_text(result.as_json()), encoding="utf-8")
    for arm, run in zip(result.arms, result.runs, strict=True):
        folder = directory / arm.directory
        folder.mkdir(parents=True)
        write_run(run, result.load.trace, folder)


def _render(directory: Path, *, asked: bool) -> None:
    """A comparison has a page by itself; without a renderer that is worth a word, unless it was asked for."""
    try:
        render(directory)
    except ConfigError as error:
        if asked:
            raise
        say(f"no report.html: {error}")


def print_comparison(result: Comparison) -> None:
    """Print arms, differences and the verdict."""
    from rich.markup import escape  # noqa: PLC0415  only where tables are printed

    out = console()
    _print_arms(result, out)
    _print_differences(result, out)
    counted = f"{result.warmup.requests - result.warmup.removed} requests in each of {len(result.seeds)} replications"
    out.print(f"[dim]{counted}; warm-up: {result.warmup.removed} removed ({result.warmup.rule})[/]")
    out.print(f"\n[bold]{escape(result.verdict)}[/]")
    if result.engine_flags and result.winner:
        out.print(f"{escape(result.winner)} as engine flags: [cyan]{result.engine_flags}[/]")
    for note in result.engine_notes:
        out.print(f"[dim]not a flag:[/] {escape(note)}")
    for warning in result.warnings:
        out.print(f"[yellow]note[/] {escape(warning)}")


def _print_arms(result: Comparison, out: Console) -> None:
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    shown = [name for name in _SHOWN if name in result.arms[0].metrics]
    if len(result.arms) <= _SIDE_BY_SIDE:
        table = Table("", *(escape(arm.name) for arm in result.arms), box=None, header_style="bold")
        for name in shown:
            cells = (quantity(arm.metrics[name]) for arm in result.arms)
            table.add_row(
                f"{name} [dim]{unit(name)}[/]", *cells, style="bold" if name == result.metric else ""
            )
        table.add_row("gpus", *(str(arm.gpus) for arm in result.arms))
        table.add_row("preemptions", *(str(arm.preemptions) for arm in result.arms))
    else:
        few = [
            result.metric,
            *(name for name in shown if name.startswith(("mean", "p99")) and name != result.metric),
        ]
        table = Table(
            "", *(name.removesuffix("_ms") for name in few[:6]), "gpus", box=None, header_style="bold"
        )
        for arm in result.arms:
            table.add_row(escape(arm.name), *(quantity(arm.metrics[name]) for name in few[:6]), str(arm.gpus))
    out.print(table)


def _print_differences(result: Comparison, out: Console) -> None:
    """Print all metrics shown of two or three arms; of more of them, the metric that decides."""
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    heads = ("difference", "", f"{CONFIDENCE:.0%} interval")
    base, many = result.arms[0].name, len(result.arms) > _SIDE_BY_SIDE
    tables: dict[str, Table] = {}
    for gap in result.differences:
        if gap.metric != result.metric if many else gap.metric not in _SHOWN:
            continue
        title = f"{result.metric} less that of {base}" if many else f"{gap.arm} less {base}"
        table = tables.setdefault(title, Table(escape(title), *heads, box=None, header_style="bold"))
        relative = "" if gap.relative is None else f"{gap.relative:+.1%}"
        interval = "-" if gap.ci_low is None else f"{quantity(gap.ci_low)} to {quantity(gap.ci_high)}"
        row = escape(gap.arm) if many else f"{gap.metric} [dim]{unit(gap.metric)}[/]"
        table.add_row(row, quantity(gap.delta), relative, interval, style="" if gap.shown else "dim")
    for table in tables.values():
        out.print(table)
