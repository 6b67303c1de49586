"""A comparison as tables on a terminal, within 80 columns unless the numbers themselves need more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.commands.options import console
from sim.studies.compare import Arm, Comparison
from sim.studies.pairs import change, quantity, unit
from sim.studies.statistics import CONFIDENCE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SIDE_BY_SIDE = 3
_LONGEST_ROW = 24
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


def print_comparison(result: Comparison) -> None:
    """Print arms, differences and the verdict."""
    from rich.markup import escape  # noqa: PLC0415  only where tables are printed

    out = console()
    names = [arm.name for arm in result.arms]
    what, labels = short_labels(result.arms, out.width)
    if not what and labels != names:
        for label, name in zip(labels, names, strict=True):
            out.print(f"[bold]{label}[/] {escape(name)}")
    _print_arms(result, out, what, labels)
    _print_differences(result, out, what, dict(zip(names, labels, strict=True)))
    counted = f"{result.warmup.requests - result.warmup.removed} requests in each of {len(result.seeds)} replications"
    out.print(f"[dim]{counted}; warm-up: {result.warmup.removed} removed ({result.warmup.rule})[/]")
    out.print(f"\n[bold]{escape(result.verdict)}[/]")
    if result.engine_flags and result.winner:
        out.print(f"{escape(result.winner)} as engine flags: [cyan]{result.engine_flags}[/]")
    for note in result.engine_notes:
        out.print(f"[dim]not a flag:[/] {escape(note)}")
    for warning in result.warnings:
        out.print(f"[yellow]note[/] {escape(warning)}")


def short_labels(arms: Sequence[Arm], width: int) -> tuple[str, list[str]]:
    """Names for columns and rows: the field that alone varies, and its values; else names, or numbers for long ones."""
    names = [arm.name for arm in arms]
    what, equals, _ = names[0].partition("=")
    alone = all(len(arm.set) == 1 and arm.name.startswith(f"{what}=") for arm in arms)
    if equals and alone:
        names = [name.removeprefix(f"{what}=") for name in names]
    else:
        what = ""
    first = max(len(what), *(len(_titled(name)) for name in _SHOWN))
    side_by_side = len(names) <= _SIDE_BY_SIDE
    fits = (
        first + sum(len(name) + 2 for name in names) < width
        if side_by_side
        else max(map(len, names)) <= _LONGEST_ROW
    )
    return (what, names) if fits else ("", [f"#{at + 1}" for at in range(len(names))])


def _titled(metric: str) -> str:
    """A metric with its unit, which the names of latencies have in them."""
    return metric if metric.endswith("_ms") else f"{metric} {unit(metric)}"


def _table(*heads: str) -> Table:
    """Columns of numbers, which are never broken or cut short."""
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for head in heads:
        table.add_column(escape(head), no_wrap=True)
    return table


def _print_arms(result: Comparison, out: Console, what: str, labels: Sequence[str]) -> None:
    from rich.markup import escape  # noqa: PLC0415

    shown = [name for name in _SHOWN if name in result.arms[0].metrics]
    if len(labels) <= _SIDE_BY_SIDE:
        table = _table(what, *labels)
        for name in shown:
            cells = (quantity(arm.metrics[name]) for arm in result.arms)
            table.add_row(_titled(name), *cells, style="bold" if name == result.metric else "")
        table.add_row("gpus", *(str(arm.gpus) for arm in result.arms))
        table.add_row("preemptions", *(str(arm.preemptions) for arm in result.arms))
        if any(arm.prefix_hit_rate is not None for arm in result.arms):
            rates = (
                "-" if arm.prefix_hit_rate is None else f"{arm.prefix_hit_rate:.1%}" for arm in result.arms
            )
            table.add_row("prefix hit rate", *rates)
    else:
        few = [result.metric, *(name for name in shown if name.endswith("_ms") and name != result.metric)]
        heads = [name.removesuffix("_ms") for name in few]
        room = out.width - max(len(what), *map(len, labels)) - len("  gpus  ")
        while len(heads) > 1 and sum(len(head) + 2 for head in heads) > room:
            heads.pop()
        table = _table(what, *heads, "gpus")
        for arm, label in zip(result.arms, labels, strict=True):
            cells = (quantity(arm.metrics[name]) for name in few[: len(heads)])
            table.add_row(escape(label), *cells, str(arm.gpus))
    out.print(table)


def _print_differences(result: Comparison, out: Console, what: str, labels: dict[str, str]) -> None:
    """Print all metrics shown of two or three arms; of more of them, the metric that decides."""
    from rich.markup import escape  # noqa: PLC0415

    base, many = labels[result.arms[0].name], len(result.arms) > _SIDE_BY_SIDE
    tables: dict[str, Table] = {}
    for gap in result.differences:
        if gap.metric != result.metric if many else gap.metric not in _SHOWN:
            continue
        title = f"{labels[gap.arm]} less {base}"
        if many:
            title = f"{_titled(result.metric)} less that of {f'{what}=' if what else ''}{base}"
        table = tables.setdefault(title, _table("", "difference", "", f"{CONFIDENCE:.0%} interval"))
        relative = "" if gap.relative is None else change(gap.relative)
        interval = "-" if gap.ci_low is None else f"{quantity(gap.ci_low)} to {quantity(gap.ci_high)}"
        row = escape(labels[gap.arm]) if many else _titled(gap.metric)
        table.add_row(row, quantity(gap.delta), relative, interval, style="" if gap.shown else "dim")
    for title, table in tables.items():
        out.print(f"\n[bold] {escape(title)}[/]")
        out.print(table)
