"""`servetwin plan`: greatest request rate within the SLOs, fewest replicas, cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sim.commands.options import NO_OPTIONS, ScenarioOptions, console, progress, put_json, render, say
from sim.run_directory import LOCK, json_text, lock_text, new_directory
from sim.studies.operating_point import MOST_REPLICATIONS
from sim.studies.plan import Plan, count_replicas
from sim.studies.plan import plan as make_plan

PLAN = "plan.json"
_USUAL_RUNS = 60


def plan(
    scenario: Path,
    /,
    *,
    slo: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)] = (),
    replications: int = MOST_REPLICATIONS,
    options: ScenarioOptions = NO_OPTIONS,
) -> int:
    """Find the greatest request rate within the SLOs, and the fewest replicas for the scenario's rate.

    Exit code 1: the SLOs cannot be met.

    Parameters
    ----------
    scenario
        Scenario file (YAML) with an open stream of requests.
    slo
        A limit as METRIC=MS (p99_ttft_ms=1000, mean_tpot_ms=40, ...); may be repeated. By default those of the
        scenario, for the P99. A refused request counts as one of infinite latency: a P99 forgives 1% of them, a P90
        10%, a mean 1%.
    replications
        Most runs of a point near the edge.

    """
    options.check(PLAN)
    with progress("plan", _USUAL_RUNS) as advance:
        result = make_plan(
            scenario,
            slo,
            overrides=options.overrides,
            seed=options.seed,
            replications=replications,
            on_run=advance,
        )
    if options.out is not None:
        with new_directory(options.out, PLAN) as directory:
            (directory / PLAN).write_text(json_text(result.as_json()), encoding="utf-8")
            (directory / LOCK).write_text(lock_text(result.scenario, result.service), encoding="utf-8")
            if options.report:
                render(directory)
        say(f"wrote {options.out}")
    if options.json:
        put_json(result.as_json())
    else:
        print_plan(result)
    return 0 if result.slo_met else 1


def print_plan(result: Plan) -> None:
    """Print every point and the answers."""
    from rich.markup import escape  # noqa: PLC0415  only where tables are printed
    from rich.table import Table  # noqa: PLC0415

    out = console()
    metrics = tuple(result.slo)
    heads = (f"{metric} <= {limit:g}" for metric, limit in result.slo.items())
    table = Table(
        "replicas", "requests/s", "of saturation", *heads, "met", "runs", box=None, header_style="dim"
    )
    for point in result.curve:
        values = ("-" if point.metrics is None else f"{point.metrics[metric]:,.1f}" for metric in metrics)
        met = "yes" if point.met else "no" if point.stable else "queue grows"
        cells = (
            str(point.replicas),
            f"{point.request_rate:.4g}",
            f"{point.request_rate / point.saturation_rate:.0%}",
        )
        table.add_row(*cells, *values, met, str(point.replications or "-"), style="" if point.met else "dim")
    out.print(table)
    if result.stability_margin is None:
        out.print(
            f"\n[bold]The limits cannot be met on {count_replicas(result.scenario_replicas)}, at any rate.[/]"
        )
    else:
        out.print(
            f"\n[bold]greatest rate[/] on {count_replicas(result.scenario_replicas)}: "
            f"[bold]{result.max_request_rate:.4g} requests/s[/], {result.stability_margin:.0%} below saturation"
        )
    if result.replicas is not None and result.planned_stability_margin is not None:
        gpus = "1 GPU" if result.gpus == 1 else f"{result.gpus} GPUs"
        out.print(
            f"[bold]fewest replicas[/] for {result.request_rate:.4g} requests/s: [bold]{result.replicas}[/] "
            f"({gpus}, {result.cost_per_hour:.2f} an hour), {result.planned_stability_margin:.0%} below saturation"
        )
    out.print(f"what binds: {escape(result.explanation)}")
    for warning in result.warnings:
        out.print(f"[yellow]note[/] {escape(warning)}")
