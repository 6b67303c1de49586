"""`servetwin validate`: predictions against what was measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from calibration.options import FLAG, REPEATED, say
from calibration.step_log import read_step_log
from calibration.validate_steps import StepComparison, compare_steps
from sim.run_directory import json_text
from workloads.errors import ConfigError

if TYPE_CHECKING:
    from calibration.serving.measured_run import MeasuredRun

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


@app.command
def serving(
    *data: Path,
    scenario: Path | None = None,
    profile: Path | None = None,
    by: Annotated[tuple[str, ...], REPEATED] = (),
    metric: Annotated[tuple[str, ...], REPEATED] = (),
    tolerance: Annotated[tuple[str, ...], REPEATED] = (),
    out: Path | None = None,
    report: Annotated[bool, FLAG] = False,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Predict measured runs blind, from what was offered to them, and say how right the predictions are.

    Exit code 1 where a tolerance is not met.

    Parameters
    ----------
    data
        Measured runs: a data set, or the result file of a benchmark client.
    scenario
        The service that was measured (YAML), where the data do not say it.
    profile
        Profile of your own in place of the shipped one of its device.
    by
        Labels to group scores by, as system,model; may be repeated. By default system,model.
    metric
        Score this metric alone, such as mean_tpot_ms; may be repeated.
    tolerance
        METRIC=VALUE, the most that its MAPE may be: 0.05 or 5%. METRIC:STATISTIC=VALUE of another statistic (bias, p50,
        p90, p99, worst); may be repeated.
    out
        Directory for scores.json and predictions.parquet.
    report
        Also write report.html into --out.
    json
        Print one JSON document on standard output and nothing else.

    """
    from calibration.serving.tolerances import parse_tolerance  # noqa: PLC0415  not for --help
    from calibration.serving.validation import check_request, validate  # noqa: PLC0415
    from calibration.serving.validation_files import SCORES, write_validation  # noqa: PLC0415
    from calibration.serving.validation_text import validation_lines  # noqa: PLC0415
    from sim.commands.options import progress, put_json, render  # noqa: PLC0415
    from sim.profile import load_profile  # noqa: PLC0415
    from sim.run_directory import check_replaceable, new_directory  # noqa: PLC0415

    limits = [parse_tolerance(text) for text in tolerance]
    groups = [tuple(name.strip() for name in labels.split(",")) for labels in by]
    if out is not None:
        check_replaceable(out, SCORES)
    elif report:
        raise ConfigError("--report: needs --out DIR, where report.html goes")
    own = None if profile is None else load_profile(profile)
    runs, unread = _read(data, scenario, profile)
    check_request(runs, groups, metric, limits)
    with progress("predict", len(runs)) as advance:
        validation = validate(
            [path.name for path in data],
            runs,
            unread=unread,
            profile=own,
            by=groups,
            metrics=metric,
            tolerances=limits,
            on_run_done=advance,
        )
    if out is not None:
        with new_directory(out, SCORES) as directory:
            write_validation(validation, directory)
            if report:
                render(directory, "serving")
        say(f"wrote {out}")
    if json:
        put_json(validation.as_json())
    else:
        print(validation_lines(validation))
    return 0 if validation.met else 1


def _read(
    data: Sequence[Path], scenario: Path | None, profile: Path | None
) -> tuple[list[MeasuredRun], list[str]]:
    """Measured runs, and one line for each result that cannot be trusted."""
    from calibration.serving.readers.detect import read_runs  # noqa: PLC0415
    from sim.scenario.reading import read_mapping  # noqa: PLC0415

    if not data:
        raise ConfigError("validate serving: needs measured runs, a file or a folder")
    raw = None if profile is None else {"hardware": {"profile": str(profile)}}
    if scenario is not None:
        raw = read_mapping(scenario)
    unread: list[str] = []
    runs = [
        run
        for path in data
        for run in read_runs(path, raw, on_refused=lambda error: unread.append(str(error)))
    ]
    if not runs:
        raise ConfigError(f"{', '.join(map(str, data))}: holds no run that can be predicted")
    return runs, unread


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
