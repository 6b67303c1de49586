"""Colours. Figures are drawn in the light ones; the page swaps each for its dark twin where the system is dark.

Arms: Okabe and Ito's palette, made for colour-blind readers, the two lightest darkened for contrast on white.
Stages: Tol's `muted` palette, so that a stage is never taken for an arm. Neither is the only carrier of a meaning:
lines differ in their dashes, bars carry their names.
"""

from __future__ import annotations

INK = "#1B1F24"
MUTED = "#5B6470"
GRID = "#E2E5E9"
SURFACE = "#FFFFFF"
LIMIT = "#A1260D"

ARMS = ("#0072B2", "#D55E00", "#00815F", "#B0578D", "#2E8FC4", "#A87400")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

STAGES = {
    "gateway": "#88CCEE",
    "tokenise": "#999933",
    "queue": "#DDCC77",
    "prefix_load": "#AA4499",
    "prefill": "#4B3FA0",
    "decode": "#44AA99",
    "preempted": "#CC6677",
    "stream": "#AAB0B8",
}
OWNERS = ("#4B3FA0", "#CC6677", "#44AA99", "#DDCC77", "#88CCEE", "#AA4499", "#999933", "#AAB0B8")
"""Who holds or uses something: Tol's palette again, in figures that have no stages."""

OTHER_STAGE = "#7F7F7F"

DARK = {
    INK: "#E6E9ED",
    MUTED: "#9DA7B3",
    GRID: "#2F353D",
    SURFACE: "#15181C",
    LIMIT: "#FF8F75",
    "#0072B2": "#4DA9E8",
    "#D55E00": "#FF9151",
    "#00815F": "#2FC79A",
    "#B0578D": "#E59CC8",
    "#2E8FC4": "#9AD4F5",
    "#A87400": "#F0BE55",
    "#4B3FA0": "#8C80E6",
}
"""What the page shows instead of a colour where the system is dark; the others serve both."""


def arm_colour(index: int) -> str:
    return ARMS[index % len(ARMS)]


def arm_dash(index: int) -> str:
    """A second carrier of the identity of an arm, which starts again one further when colours do."""
    return DASHES[(index + index // len(ARMS)) % len(DASHES)]


def dark_on(colour: str) -> str:
    """Ink that is legible on a filled area of this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#1A1A1A" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#FDFDFD"
