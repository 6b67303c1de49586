"""`servetwin calibrate`: measure a device, and fit a profile to it."""

from __future__ import annotations

import json as json_format
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from calibration.options import FLAG, REPEATED, check_budget, load_models, say
from workloads.errors import InputError


def calibrate(
    *,
    device: str = "auto",
    model: Annotated[tuple[str, ...], REPEATED] = (),
    budget: float = 60.0,
    out: Path = Path("profile.json"),
    raw: Path | None = None,
    resume: Annotated[bool, FLAG] = False,
    force: Annotated[bool, FLAG] = False,
    report: Annotated[bool, FLAG] = False,
    max_tokens: int | None = None,
    max_seqs: int | None = None,
    max_context: int | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Measure a device within a budget, and fit a profile that a scenario can name.

    The most informative points come first; a calibration that was cut short goes on with --resume.

    Parameters
    ----------
    device
        auto (a GPU if there is one), cpu or cuda.
    model
        What will be simulated: a shipped model or the path of a config.json. May be repeated; by default a small one
        on a CPU, llama-3.1-8b on a GPU.
    budget
        Seconds for measuring; a first round of points is measured whatever it takes.
    out
        Profile to write; name it in a scenario as hardware.profile.
    raw
        Folder for the raw samples, tables and allocation trace; by default beside the profile, NAME_raw.
    resume
        Add to the samples that the folder has.
    force
        Replace an existing profile.
    report
        Also write calibration.html into the folder of raw samples: measured against fitted, and the roofline.
    max_tokens
        Most tokens of a step; by default 512 on a CPU, 8192 on a GPU.
    max_seqs
        Most sequences of a step; by default 32 and 256.
    max_context
        Longest context; by default 2048 and 16384.
    json
        Print one JSON document on standard output and nothing else.

    """
    from calibration import calibrate as calibration  # noqa: PLC0415  NumPy and SciPy are wanted for nothing else
    from calibration import profile_text  # noqa: PLC0415
    from calibration.points import Extent, plan  # noqa: PLC0415
    from hwbackend.device import open_device  # noqa: PLC0415
    from hwbackend.samples import SampleStore  # noqa: PLC0415
    from workloads.replacing import replacing  # noqa: PLC0415

    check_budget(budget)
    opened = open_device(device)
    try:
        extent = replace(
            Extent.of(opened),
            **_given(max_tokens=max_tokens, max_seqs=max_seqs, max_context=max_context),
        )
        points = plan(opened, load_models(model, opened), extent)
        with replacing(out, force=force) as draft:
            store = SampleStore(
                raw or out.with_name(f"{out.stem}_raw"), opened.identity.fingerprint, resume=resume
            )
            say(f"{opened.identity.name}: {len(points)} points planned, {len(store)} measured before")
            left = calibration.measure_points(opened, points, budget, store, Teller())
            if left:
                say(
                    f"time is up: {len(left)} points are left, from round {left[0].due} on; --resume measures them"
                )
            calibration.write_trace(opened, store)
            profile = calibration.fit_measurements(opened, store, out.stem, extent, say)
            draft.write_text(profile.to_json(), encoding="utf-8")
    finally:
        opened.close()
    say(f"wrote {out} and {store.folder}")
    if report:
        from sim.commands.options import render  # noqa: PLC0415

        say(f"wrote {render(store.folder, 'calibration')}")
    if json:
        document = profile_text.document(profile)
        facts: dict[str, Any] = {"file": str(out), "raw": str(store.folder), "points": len(store)}
        print(json_format.dumps(facts | {"left": len(left), **document}, indent=2))
    else:
        print(profile_text.profile_lines(profile))


class Teller:
    """A line a point; a reason to skip points is said once."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, progress: Any) -> None:  # noqa: ANN401  of calibration.calibrate, not loaded for --help
        result = progress.result
        if result.measurement is None:
            if result.skipped not in self._reasons:
                self._reasons.add(result.skipped)
                say(
                    f"{result.benchmark} {_words(result.axes)}, and others like it: skipped: {result.skipped}"
                )
            return
        summary = result.measurement.summary
        what = f"{1e6 * summary.median_s:.1f} us, noise {summary.relative_noise:.1%}"
        if summary.disturbed:
            why = (
                "clock held back"
                if summary.throttled
                else f"others had {summary.others_share:.0%} of the cores"
            )
            what += f", disturbed: {why}"
        turn = f"{progress.done}/{progress.planned}" if progress.turn == 0 else f"pass {progress.turn + 1}"
        say(f"[{turn}, {progress.elapsed_s:.0f} s] {result.benchmark} {_words(result.axes)}: {what}")


def _words(axes: dict[str, int | str]) -> str:
    return " ".join(f"{axis}={value}" for axis, value in axes.items())


def _given(**counts: int | None) -> dict[str, int]:
    """Those that were given, checked."""
    for name, count in counts.items():
        if count is not None and not 2 <= count <= 1 << 20:
            raise InputError(f"--{name.replace('_', '-')} {count}: from 2 to 1048576")
    return {name: count for name, count in counts.items() if count is not None}
