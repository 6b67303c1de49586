"""A confirmation in words and numbers, for a terminal and for the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calibration.confirmation.outcome import TOLERANCE, ArmOutcome, Comparison, Outcome
from calibration.profile_text import table

_SHOWN: Final = (
    "mean_ttft_ms",
    "mean_tpot_ms",
    "p90_tpot_ms",
    "mean_e2el_ms",
    "p90_e2el_ms",
    "output_throughput",
)


def outcome_lines(outcome: Outcome) -> str:
    """Each arm's metrics, simulated and measured; each comparison; what to know; the verdict last."""
    parts = [
        f"{outcome.device['name']} ({outcome.device['kind']}), {len(outcome.arms[0].repetitions)} repetitions"
    ]
    parts += [_arm_lines(arm) for arm in outcome.arms]
    parts.append("\n".join(_comparison_line(one) for one in outcome.comparisons))
    if outcome.notes:
        parts.append("\n".join(f"note: {note}" for note in outcome.notes))
    parts.append(verdict(outcome))
    return "\n\n".join(parts)


def verdict(outcome: Outcome) -> str:
    """One line: what held, what did not."""
    if not outcome.judged:
        return f"no simulated gain in {outcome.metric} exceeds the noise of the device; nothing to confirm"
    ordering = "held" if outcome.ordering_held else "did not hold"
    gain = "held" if outcome.gain_held else "did not hold"
    metrics = "within" if outcome.accurate else "not all within"
    return (
        f"ordering by {outcome.metric} {ordering}, gain {gain}; "
        f"metrics are {metrics} their tolerance ({_tolerances()})"
    )


def markdown_table(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    """One row per confirmation and arm, for the README."""
    head = [
        "confirmation",
        "arm",
        "mean TPOT",
        "mean E2EL",
        "P90 TPOT",
        "P90 E2EL",
        "gain simulated",
        "gain measured",
    ]
    rows = [head, ["---"] * len(head)]
    for name, outcome in outcomes:
        against = {one.arm: one for one in outcome.comparisons if one.base == outcome.arms[0].name}
        for arm in outcome.arms:
            errors = [f"{arm.error[key]:+.1%}" for key in TOLERANCE]
            rows.append([name, arm.name, *errors, *_gains(against.get(arm.name))])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _gains(one: Comparison | None) -> list[str]:
    if one is None:
        return ["", ""]
    noise = "" if one.noise is None else f" ± {one.noise:.1%}"
    return [f"{one.gain_simulated:+.1%}", f"{one.gain_measured:+.1%}{noise}"]


def _arm_lines(arm: ArmOutcome) -> str:
    rows = [[arm.name, "simulated", "measured", "95% interval", "error", "within"]]
    for name in _SHOWN:
        interval = arm.interval[name]
        between = "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
        within = {True: "yes", False: "no", None: ""}[arm.within.get(name)]
        values = [
            f"{arm.simulated[name]:.1f}",
            f"{arm.measured[name]:.1f}",
            between,
            f"{arm.error[name]:+.1%}",
        ]
        rows.append([name, *values, within])
    return table(rows)


def _comparison_line(one: Comparison) -> str:
    noise = "unknown" if one.noise is None else f"{one.noise:.1%}"
    said = f"{one.arm} against {one.base}: gain {one.gain_simulated:+.1%} simulated, {one.gain_measured:+.1%} measured"
    if not one.judged:
        return f"{said}; within the noise ({noise})"
    held = "ordering held" if one.ordering_held else "ordering did NOT hold"
    gain = "gain held" if one.gain_held else "gain did NOT hold"
    return f"{said}; noise {noise}; {held}, {gain}"


def _tolerances() -> str:
    return ", ".join(f"{name} {limit:.0%}" for name, limit in TOLERANCE.items())
