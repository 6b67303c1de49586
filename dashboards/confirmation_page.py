"""The page of a confirmation: what simulation said beside what the device did, and whether the decision held.

Made from confirmation.json alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards import theme
from dashboards.document_files import read_document
from dashboards.documents import Part
from dashboards.figures import blank
from dashboards.page import Plot, facts_list, page, plain_table, plot_html, section, text
from workloads.replacing import replacing

CONFIRMATION = "confirmation.json"
PAGE = "report.html"


class ArmDocument(Part):
    """One arm of confirmation.json."""

    name: str
    simulated: dict[str, float]
    measured: dict[str, float]
    interval: dict[str, tuple[float, float] | None]
    error: dict[str, float]
    within: dict[str, bool]
    repetitions: list[dict[str, float]]


class ComparisonDocument(Part):
    """One arm against another."""

    arm: str
    base: str
    gain_simulated: float
    gain_measured: float
    noise: float | None
    judged: bool
    ordering_held: bool
    gain_held: bool


class ConfirmationDocument(Part):
    """What the page needs of confirmation.json."""

    device: dict[str, Any]
    metric: str
    arms: list[ArmDocument]
    comparisons: list[ComparisonDocument]
    ordering_held: bool | None
    gain_held: bool | None
    accurate: bool
    tolerance: dict[str, float]
    calibration: dict[str, Any]
    notes: list[str]


def render(directory: Path) -> Path:
    """Write report.html into a directory that `servetwin confirm --out` wrote."""
    document = read_document(directory / CONFIRMATION, ConfirmationDocument, "servetwin confirm --out")
    target = directory / PAGE
    with replacing(target, force=True) as draft:
        draft.write_text(confirmation_html(document), encoding="utf-8")
    return target


def confirmation_html(document: ConfirmationDocument) -> str:
    """The page, from top to bottom."""
    title = f"Confirmation on {document.device.get('name', 'a device')}"
    notes = "".join(f"<li>{text(note)}</li>" for note in document.notes)
    return page(
        title,
        [
            f"<header><h1>{text(title)}</h1><p class='muted'>{text(_verdict(document))}</p></header><main>",
            section("Gains", plot_html(_gains(document)), _comparison_table(document)),
            section("Simulated and measured", plot_html(_errors(document)), _arm_tables(document)),
            section("What to know", f"<ul>{notes}</ul>" if notes else ""),
            section("Calibration", _calibration(document.calibration)),
            section("The device", _facts(document.device)),
            "</main>",
        ],
    )


def _verdict(document: ConfirmationDocument) -> str:
    judged = [one for one in document.comparisons if one.judged]
    if not judged:
        return f"No simulated gain in {document.metric} exceeds the noise of the device."
    ordering = "held" if document.ordering_held else "did not hold"
    gain = "held" if document.gain_held else "did not hold"
    accurate = "within" if document.accurate else "not all within"
    return f"By {document.metric} the ordering {ordering} and the gain {gain}; metrics are {accurate} their tolerance."


def _gains(document: ConfirmationDocument) -> Plot:
    """Each pair: the simulated gain, and the measured one with its noise."""
    figure, summary = blank(120 + 56 * len(document.comparisons), legend=True), []
    names = [f"{one.arm} against {one.base}" for one in document.comparisons]
    for index, (kind, values, noise) in enumerate(
        (
            ("simulated", [one.gain_simulated for one in document.comparisons], None),
            (
                "measured",
                [one.gain_measured for one in document.comparisons],
                [one.noise or 0.0 for one in document.comparisons],
            ),
        )
    ):
        figure.add_scatter(
            x=[100 * value for value in values],
            y=names,
            mode="markers",
            name=kind,
            marker={"color": theme.arm_colour(index), "size": 10, "symbol": ("circle", "diamond")[index]},
            error_x=None if noise is None else {"type": "data", "array": [100 * value for value in noise]},
            hovertemplate="%{y}<br>" + kind + " %{x:.1f}%<extra></extra>",
        )
    for name, one in zip(names, document.comparisons, strict=True):
        summary.append(f"{name}: {one.gain_simulated:+.1%} simulated, {one.gain_measured:+.1%} measured")
    figure.update_xaxes(title=f"gain in {document.metric} [%]", zeroline=True)
    caption = "Positive: better. The bars are 95% intervals of the measured gain over the repetitions."
    return Plot("gains", "Gains, simulated and measured", figure, summary, caption)


def _errors(document: ConfirmationDocument) -> Plot:
    figure, summary = blank(360, legend=True), []
    for index, arm in enumerate(document.arms):
        names = list(arm.error)
        figure.add_bar(
            x=names,
            y=[100 * arm.error[name] for name in names],
            name=arm.name,
            marker={"color": theme.arm_colour(index)},
            hovertemplate="%{x}<br>%{y:.1f}%<extra></extra>",
        )
        worst = max(names, key=lambda name: abs(arm.error[name]))
        summary.append(f"{arm.name}: largest error {arm.error[worst]:+.1%}, of {worst}")
    figure.update_yaxes(title="simulated over measured, less 1 [%]")
    limits = ", ".join(f"{name} {limit:.0%}" for name, limit in document.tolerance.items())
    return Plot("errors", "Errors of the simulation", figure, summary, f"Tolerances: {limits}.")


def _comparison_table(document: ConfirmationDocument) -> str:
    rows = []
    for one in document.comparisons:
        noise = "unknown" if one.noise is None else f"{one.noise:.1%}"
        held = "within the noise" if not one.judged else ("held" if one.ordering_held else "did not hold")
        gain = "" if not one.judged else ("held" if one.gain_held else "did not hold")
        name = f"{one.arm} against {one.base}"
        rows.append([name, f"{one.gain_simulated:+.1%}", f"{one.gain_measured:+.1%}", noise, held, gain])
    return plain_table(["arms", "simulated", "measured", "noise", "ordering", "gain"], rows)


def _arm_tables(document: ConfirmationDocument) -> str:
    parts = []
    for arm in document.arms:
        rows = []
        for name, simulated in arm.simulated.items():
            interval = arm.interval.get(name)
            between = "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
            within = {True: "yes", False: "no", None: ""}[arm.within.get(name)]
            each = ", ".join(f"{repetition[name]:.1f}" for repetition in arm.repetitions)
            cells = [f"{simulated:.1f}", f"{arm.measured[name]:.1f}", between, f"{arm.error[name]:+.1%}"]
            rows.append([name, *cells, within, each])
        head = ["metric", "simulated", "measured", "95% interval", "error", "within", "repetitions"]
        parts.append(f"<h3>{text(arm.name)}</h3>{plain_table(head, rows)}")
    return "".join(parts)


def _calibration(calibration: Mapping[str, Any]) -> str:
    return f"<pre><code>{text(json.dumps(calibration, indent=1))}</code></pre>"


def _facts(device: Mapping[str, Any]) -> str:
    facts = {**device, **device.get("facts", {})}
    shown = {key: value for key, value in facts.items() if key != "facts" and value is not None}
    return facts_list(shown)
