"""`servetwin demo`: the main job, from a shipped scenario to a report, in one command."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import yaml
from cyclopts import Parameter

from sim.commands.compare import COMPARISON, write_comparison
from sim.commands.comparison_text import print_comparison
from sim.commands.options import progress, put_json, render, say
from sim.commands.plan import PLAN, print_plan
from sim.run_directory import check_replaceable, json_text, new_directory
from sim.studies.compare import compare
from sim.studies.plan import plan

VARY = ("policies.batcher=chunked,{name: dynamic_chunked, target_tpot_ms: 30}",)
# Half the runs that `plan` takes of a rate near the edge, and a greatest rate to within 3%, which is still finer than
# the runs can tell: it saves half of the time.
REPLICATIONS = 5
RATE_RATIO = 1.03
SLO = ("p90_ttft_ms=2000", "p99_tpot_ms=40")


def demo(
    *,
    out: Path = Path("servetwin-demo"),
    seed: int = 0,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Compare static with dynamic chunking on a shipped workload, plan capacity, and write a report.

    Parameters
    ----------
    out
        Directory for the results.
    seed
        Seed of the requests.
    json
        Print one JSON document on standard output and nothing else.

    """
    check_replaceable(out, COMPARISON)
    text = files("sim").joinpath("scenario", "demo.yaml").read_text(encoding="utf-8")
    scenario = yaml.safe_load(text)
    with progress("compare", 1) as advance:
        comparison = compare(
            scenario, VARY, seed=seed, on_run=lambda label, total: advance(label, total=total)
        )
    winner = next((arm for arm in comparison.arms if arm.name == comparison.winner), comparison.arms[0])
    overrides = [f"{path}={json_text(value)}" for path, value in winner.set.items()]
    with progress("plan", 1) as advance:
        capacity = plan(
            scenario,
            SLO,
            overrides=overrides,
            seed=seed,
            replications=REPLICATIONS,
            rate_ratio=RATE_RATIO,
            on_run=advance,
        )
    with new_directory(out, COMPARISON) as directory:
        (directory / "scenario.yaml").write_text(text, encoding="utf-8")
        write_comparison(comparison, directory)
        (directory / PLAN).write_text(json_text(capacity.as_json()), encoding="utf-8")
        render(directory)
    if json:
        put_json(
            {
                "comparison": comparison.as_json(),
                "plan": capacity.as_json(),
                "report": str(out / "report.html"),
            }
        )
    else:
        print_comparison(comparison)
        print_plan(capacity)
    say(f"open {out / 'report.html'} in a browser")
