"""`servetwin compare`: the same requests under different policies or machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sim.commands.comparison_text import print_comparison
from sim.commands.options import NO_OPTIONS, ScenarioOptions, progress, put_json, render, say
from sim.errors import ConfigError
from sim.run_directory import LOCK, json_text, lock_text, new_directory, write_run
from sim.studies.compare import REPLICATIONS, Comparison
from sim.studies.compare import compare as compare_arms

COMPARISON = "comparison.json"


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
    """Write comparison.json, and the lock file of the first arm, which the others are compared with.

    And a run directory per arm, of its first replication.
    """
    (directory / COMPARISON).write_text(json_text(result.as_json()), encoding="utf-8")
    base = result.runs[0]
    (directory / LOCK).write_text(lock_text(base.scenario, base.service), encoding="utf-8")
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
