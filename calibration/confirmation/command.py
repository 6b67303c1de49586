"""`servetwin confirm`: a decision made in simulation, repeated on the device in front of you."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from calibration.options import FLAG, REPEATED, check_budget, say
from workloads.errors import ConfigError


def confirm(
    scenario: str,
    /,
    *,
    vary: Annotated[tuple[str, ...], REPEATED] = (),
    device: str = "auto",
    metric: str | None = None,
    repetitions: int = 3,
    budget: float | None = None,
    profile: Path | None = None,
    set: Annotated[tuple[str, ...], REPEATED] = (),  # noqa: A002  the option is --set
    seed: int | None = None,
    out: Path | None = None,
    report: Annotated[bool, FLAG] = False,
    markdown: Annotated[bool, FLAG] = False,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Run the arms of a comparison in simulation and on the device, and say whether the decision held.

    The miniature engine runs a transformer with random weights under the simulator's own policies. Exit code 1 where
    an ordering or a gain did not hold; both are judged only where the simulated gain exceeds the noise of the device,
    and where nothing is judged the answer is neither.

    Parameters
    ----------
    scenario
        Scenario file (YAML), or a shipped confirmation: chunking, cache_aware, prefetch.
    vary
        What differs, as PATH=A,B; repeated, all combinations. A shipped confirmation brings its own.
    device
        auto (a GPU if there is one), cpu or cuda.
    metric
        What decides; by default mean_e2el_ms.
    repetitions
        Runs of each arm on the device.
    budget
        Seconds for all of it; there are fewer repetitions where it ends. By default as long as they take.
    profile
        Profile of this device (servetwin calibrate) that prices the steps; by default the engine calibrates itself.
    set
        Override a field, as PATH=VALUE; may be repeated.
    seed
        Seed instead of the scenario's.
    out
        Directory for the verdict, the run directories of both sides and the engine's step logs.
    report
        Also write report.html into --out.
    markdown
        Print a table in Markdown, one row an arm.
    json
        Print one JSON document on standard output and nothing else.

    """
    from calibration.confirmation.confirm import confirm as run_confirmation  # noqa: PLC0415  not for --help
    from calibration.confirmation.files import CONFIRMATION, write_confirmation  # noqa: PLC0415
    from calibration.confirmation.shipped import SHIPPED  # noqa: PLC0415
    from calibration.confirmation.text import markdown_table, outcome_lines  # noqa: PLC0415
    from hwbackend.device import open_device  # noqa: PLC0415
    from sim.commands.options import put_json, render  # noqa: PLC0415
    from sim.profile import load_profile  # noqa: PLC0415
    from sim.run_directory import check_replaceable, new_directory  # noqa: PLC0415

    if budget is not None:
        check_budget(budget)
    if json and markdown:
        raise ConfigError("--markdown: prints another document than --json; give one")
    if out is not None:
        check_replaceable(out, CONFIRMATION)
    elif report:
        raise ConfigError("--report: needs --out DIR, where report.html goes")
    if scenario not in SHIPPED and not Path(scenario).is_file():
        raise ConfigError(
            f"{scenario}: no such file, nor a shipped confirmation; shipped are {', '.join(SHIPPED)}"
        )
    listed = None if profile is None else load_profile(profile)
    opened = open_device(device)
    try:
        shipped = SHIPPED.get(scenario)
        source = Path(scenario) if shipped is None else shipped.scenario(opened.kind)
        if shipped is not None:
            vary = vary or (shipped.vary[opened.kind],)
            metric = metric or shipped.metric
        confirmed = run_confirmation(
            source,
            vary,
            opened,
            overrides=set,
            seed=seed,
            metric=metric or "mean_e2el_ms",
            repetitions=repetitions,
            budget_s=budget,
            listed=listed,
            say=say,
        )
    finally:
        opened.close()
    outcome = confirmed.outcome
    if out is not None:
        with new_directory(out, CONFIRMATION) as directory:
            write_confirmation(confirmed, directory)
            if report:
                render(directory, "confirmation")
        say(f"wrote {out}")
    if json:
        put_json(outcome.as_json())
    else:
        print(markdown_table([(Path(scenario).stem, outcome)]) if markdown else outcome_lines(outcome))
    return int(outcome.refuted)
