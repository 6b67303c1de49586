"""`servetwin validate`: predictions against what was measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from calibration.step_log import read_step_log
from calibration.validate_steps import StepComparison, compare_steps
from sim.run_directory import json_text

app = App(name="validate", help="Predictions against measurements.")


@app.command
def steps(directory: Path, *, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Replay a recorded run of a real engine and compare the composition of every step.

    Exit code 1 where a step differs.

    Parameters
    ----------
    directory
        A run with meta.json, requests.csv and steps.csv.
    json
        Print one JSON document on standard output and nothing else.

    """
    comparison = compare_steps(read_step_log(directory))
    if json:
        sys.stdout.write(json_text(_document(comparison)))
    else:
        print(
            f"{comparison.run} ({comparison.engine}): {comparison.matching} of {comparison.steps} steps match"
        )
        for name, count in comparison.matching_by_field.items():
            print(f"  {name:<22} {count}")
        cached = comparison.cached_tokens
        if cached is not None:
            print(
                f"cached prompt tokens: engine {cached.engine}, here {cached.servetwin}, "
                f"equal for {cached.requests_equal} of {cached.requests} requests"
            )
            if cached.servetwin < cached.engine:
                print("  (what prompts share is known from the columns sys_id and parent alone)")
        if comparison.first_mismatch is not None:
            print(f"first mismatch: {comparison.first_mismatch}")
    return 0 if comparison.exact else 1


def _document(comparison: StepComparison) -> dict[str, object]:
    return {
        "run": comparison.run,
        "engine": comparison.engine,
        "steps": comparison.steps,
        "matching": comparison.matching,
        "first_mismatch": comparison.first_mismatch,
        "matching_by_field": comparison.matching_by_field,
        "cached_tokens": comparison.cached_tokens and vars(comparison.cached_tokens),
    }
