"""Errors on whole curves that no fit had seen, beside those of kernels alone: `python -m tests.fidelity.held_out`.

Reads `left_out/NAME.csv`, which `python -m calibration.serving.shipped DATA` writes with the profiles: predicted over
measured of every run of H100, H200 and B200 that is not scored apart, by a fit to the other curves. Intervals are
judged in the same way: those of a curve come from the errors on the others.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from calibration.profile_text import table
from calibration.serving.left_out import coverage

FOLDER: Final = Path(__file__).parent / "left_out"
CLOSED_LOOP: Final = ("inferencex", "nvidia_internal")
TARGETS: Final = {
    ("dense", "mean_tpot_ms"): (0.05, 0.12),
    ("dense", "mean_ttft_ms"): (0.12, 0.30),
    ("moe", "mean_tpot_ms"): (0.07, 0.18),
}
"""Median and P90 of |error| that closed loops are asked for."""
COVERED: Final = (0.80, 0.97)
HALF_WIDTH: Final = 0.12
"""What 90% intervals of TPOT are asked for: share of measurements inside, and the median of half-widths."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one part of a run; errors are predicted / measured - 1."""

    system: str
    model: str
    kind: str
    data: str
    curve: str
    metric: str
    left_out: float
    kernels_alone: float


def read_rows(folder: Path = FOLDER) -> list[Row]:
    """Read all systems, in the order of their names."""
    names = list(Row.__dataclass_fields__)
    rows = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                texts = {name: row[name] for name in names[:-2]}
                numbers = {name: float(row[name]) for name in names[-2:]}
                rows.append(Row(**texts, **numbers))
    return rows


def median_and_p90(errors: Iterable[float]) -> tuple[float, float]:
    """Of |error|."""
    off = np.abs(np.fromiter(errors, dtype=np.float64))
    return float(np.median(off)), float(np.quantile(off, 0.9))


def closed_loop(rows: Sequence[Row], kind: str, metric: str) -> list[Row]:
    return [row for row in rows if (row.kind, row.metric) == (kind, metric) and row.data in CLOSED_LOOP]


def interval_quality(rows: Sequence[Row]) -> tuple[float, float]:
    """Coverage and the median of half-widths, by curves left out within each system and kind of model."""
    inside, widths, count = 0.0, list[float](), 0
    for group in dict.fromkeys((row.system, row.kind) for row in rows):
        own = [row for row in rows if (row.system, row.kind) == group]
        covered, half_width = coverage([(row.curve, 1 / (1 + row.left_out)) for row in own])
        inside += covered * len(own)
        count += len(own)
        widths += [half_width] * len(own)
    return inside / count, float(np.median(widths))


def lines_of(rows: Sequence[Row], by: Callable[[Row], tuple[str, ...]]) -> list[list[str]]:
    """One line a group and metric."""
    lines = []
    for group in dict.fromkeys(by(row) for row in rows):
        own = [row for row in rows if by(row) == group]
        median, p90 = median_and_p90(row.left_out for row in own)
        bare_median, bare_p90 = median_and_p90(row.kernels_alone for row in own)
        worst = max((row.left_out for row in own), key=abs)
        lines.append(
            [
                *group,
                f"{len(own)}",
                f"{len({row.curve for row in own})}",
                f"{bare_median:.1%}",
                f"{bare_p90:.1%}",
                f"{median:.1%}",
                f"{p90:.1%}",
                f"{np.mean([row.left_out for row in own]):+.1%}",
                f"{worst:+.1%}",
            ]
        )
    return lines


HEAD: Final = ["rows", "curves", "kernels alone: median", "P90", "left out: median", "P90", "bias", "worst"]


def main() -> int:
    rows = read_rows()
    print("Closed loops, all systems\n")
    shown = (*TARGETS, ("moe", "mean_ttft_ms"))
    asked = [row for kind, metric in shown for row in closed_loop(rows, kind, metric)]
    print(table([["kind", "metric", *HEAD], *lines_of(asked, lambda row: (row.kind, row.metric))]))
    print("\nBy system and model\n")
    means = [row for row in rows if row.metric.startswith("mean")]
    print(
        table(
            [
                ["data", "system", "model", "metric", *HEAD],
                *lines_of(means, lambda row: (row.data, row.system, row.model, row.metric)),
            ]
        )
    )
    print("\nOpen loops, all models\n")
    names = ("mean_e2el_ms", "p99_e2el_ms", "mean_ttft_ms")
    opened = [row for name in names for row in rows if row.metric == name and row.data not in CLOSED_LOOP]
    print(table([["metric", *HEAD], *lines_of(opened, lambda row: (row.metric,))]))
    print("\n90% intervals of closed loops, each from the errors on other curves\n")
    for kind, metric in TARGETS:
        covered, half_width = interval_quality(closed_loop(rows, kind, metric))
        print(f"{kind} {metric}: {covered:.0%} inside, half-width {half_width:.1%}")
    tpot = [row for row in rows if row.metric == "mean_tpot_ms" and row.data in CLOSED_LOOP]
    covered, half_width = interval_quality(tpot)
    print(f"all mean_tpot_ms: {covered:.0%} inside, half-width {half_width:.1%}")
    met = COVERED[0] <= covered <= COVERED[1] and half_width <= HALF_WIDTH
    print()
    for (kind, metric), (median, p90) in TARGETS.items():
        found = median_and_p90(row.left_out for row in closed_loop(rows, kind, metric))
        good = found[0] <= median and found[1] <= p90
        met &= good
        print(
            f"{'met' if good else 'NOT met'}: {kind} {metric} median {found[0]:.1%} (asked {median:.0%}), "
            f"P90 {found[1]:.1%} (asked {p90:.0%})"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
