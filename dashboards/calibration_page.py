"""The page of a calibration: measured against fitted, the roofline of what was measured, and what disturbed it.

Made from a calibration's folder alone: `samples-*.parquet` and `device.json`. The fit is made again from the samples,
which takes a second and needs no profile beside them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibration.collection import Collection, read_collection
from calibration.fit import fit_profile
from calibration.fresh import predictions
from calibration.holdout import residuals
from calibration.measurements import DEVICE_FILE
from calibration.profile_text import residual_lines
from calibration.tables import Table
from dashboards import theme
from dashboards.figures import axis_style, blank
from dashboards.page import Plot, facts_list, page, plain_table, plot_html, section, text
from hwbackend.microbench.bench import Result
from hwbackend.samples import read_samples
from sim.profile import Device, Profile
from workloads.errors import InputError
from workloads.replacing import replacing

PAGE = "calibration.html"


def render(directory: Path) -> Path:
    """Write calibration.html into a folder of samples."""
    results = read_samples(directory)
    rows = read_collection(directory)
    if not rows.measured:
        raise InputError(f"{directory}: no {DEVICE_FILE}; `servetwin calibrate --raw` writes such a folder")
    target = directory / PAGE
    with replacing(target, force=True) as draft:
        draft.write_text(calibration_html(rows, results, _facts(directory)), encoding="utf-8")
    return target


def calibration_html(rows: Collection, results: Sequence[Result], facts: dict[str, Any]) -> str:
    """The page, from top to bottom."""
    profile = fit_profile(rows)
    judged = residuals(rows, profile)
    title = f"Calibration of {rows.name}"
    return page(
        title,
        [
            f"<header><h1>{text(title)}</h1><p class='muted'>{text(rows.engine)}</p></header><main>",
            section("The device", _device(rows.device, facts)),
            section(
                "Measured against fitted",
                f"<p>{text('Error on what was held out of the fit; the roofline has three parameters.')}</p>",
                f"<pre><code>{text(residual_lines(judged))}</code></pre>",
                plot_html(_against(rows, profile)),
            ),
            section("Roofline", plot_html(_roofline(rows.device, results))),
            section("What disturbed it", _disturbed(results)),
            section("All points", _points(results)),
            "</main>",
        ],
    )


def _against(rows: Collection, profile: Profile) -> Plot:
    figure, summary, bounds = blank(420, legend=True), [], []
    for index, (term, (table, fitted)) in enumerate(predictions(profile, rows.tables).items()):
        error = np.abs(fitted / table.time_s - 1)
        summary.append(f"{term}: {len(table)} points, median error of the fit {np.median(error):.1%}")
        bounds += [table.time_s.min(), table.time_s.max()]
        figure.add_scatter(
            x=1e6 * table.time_s,
            y=1e6 * fitted,
            mode="markers",
            name=term,
            marker={"color": theme.arm_colour(index), "size": 7},
            text=_labels(table),
            hovertemplate="%{text}<br>measured %{x:.1f} us<br>fitted %{y:.1f} us<extra></extra>",
        )
    ends = [1e6 * min(bounds), 1e6 * max(bounds)]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="equal", line={"color": theme.MUTED, "dash": "dot"})
    _logarithmic(figure, "measured [us]", "fitted [us]")
    return Plot("against", "Measured against fitted", figure, summary, "Both axes are logarithmic.")


def _roofline(device: Device, results: Sequence[Result]) -> Plot:
    figure, summary = blank(420, legend=True), []
    peak, bandwidth = max(device.flops_per_s.values()), device.hbm_bytes_per_s
    for index, name in enumerate(("gemm", "prefill_attention", "decode_attention")):
        timed = [
            (r, r.measurement.summary.median_s) for r in results if r.benchmark == name and r.measurement
        ]
        if not timed:
            continue
        intensity = [r.work.flops / r.work.num_bytes for r, _ in timed]
        rate = [r.work.flops / seconds for r, seconds in timed]
        roof = [min(peak, i * bandwidth) for i in intensity]
        share = float(np.median(np.array(rate) / np.array(roof)))
        words = name.replace("_", " ")
        summary.append(f"{words}: {len(timed)} points, half of them above {share:.0%} of the roof")
        figure.add_scatter(
            x=intensity,
            y=[value / 1e9 for value in rate],
            mode="markers",
            name=words,
            marker={"color": theme.arm_colour(index), "size": 7},
            text=[_words(r) for r, _ in timed],
            hovertemplate="%{text}<br>%{x:.2f} FLOP a byte<br>%{y:.1f} GFLOP/s<extra></extra>",
        )
    ridge = peak / bandwidth
    ends = [ridge / 1000, ridge, ridge * 1000]
    figure.add_scatter(
        x=ends,
        y=[min(peak, x * bandwidth) / 1e9 for x in ends],
        mode="lines",
        name="roof",
        line={"color": theme.MUTED},
    )
    _logarithmic(figure, "FLOP a byte", "GFLOP/s")
    caption = (
        f"The roof is what was measured: {bandwidth / 1e9:,.0f} GB/s by the best copy, {peak / 1e9:,.0f} GFLOP/s by "
        "the fastest product. What fits into caches may lie above it."
    )
    return Plot("roofline", "Roofline (Williams, Waterman and Patterson, 2009)", figure, summary, caption)


def _logarithmic(figure: Any, x: str, y: str) -> None:  # noqa: ANN401  Plotly has no types
    figure.update_xaxes(**{**axis_style(), "type": "log", "title": x})
    figure.update_yaxes(**{**axis_style(), "type": "log", "title": y})


def _device(device: Device, facts: dict[str, Any]) -> str:
    rows = {
        "memory": f"{device.memory_bytes / 2**30:.2f} GiB ({device.memory_source})",
        "bandwidth": f"{device.hbm_bytes_per_s / 1e9:,.1f} GB/s; host to device {device.pcie_bytes_per_s / 1e9:,.1f}",
        "peaks": ", ".join(
            f"{dtype} {flops / 1e9:,.0f} GFLOP/s" for dtype, flops in device.flops_per_s.items()
        ),
        "source": device.source,
        **{key: value for key, value in facts.items() if value is not None},
    }
    return facts_list(rows)


def _disturbed(results: Sequence[Result]) -> str:
    timed = [r.measurement.summary for r in results if r.measurement is not None]
    throttled = sum(summary.throttled for summary in timed)
    shared = sum(summary.disturbed and not summary.throttled for summary in timed)
    noise = [summary.relative_noise for summary in timed]
    words = (
        f"{len(timed)} points: {throttled} while the clock was held back, {shared} while others had more than a tenth "
        f"of the cores. Half of the points have a noise below {np.median(noise):.1%}, nine tenths below "
        f"{np.quantile(noise, 0.9):.1%} (half the width of the median's interval, over the median)."
    )
    return f"<p>{text(words)}</p>"


def _points(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        cells = [result.benchmark, _words(result)]
        if result.measurement is None:
            cells += [f"skipped: {result.skipped}", "", "", ""]
        else:
            summary = result.measurement.summary
            rates = (
                result.work.num_bytes / summary.median_s / 1e9,
                result.work.flops / summary.median_s / 1e9,
            )
            cells += [f"{1e6 * summary.median_s:,.1f}", f"{summary.relative_noise:.1%}"]
            cells += [f"{rate:,.1f}" if rate else "" for rate in rates]
        rows.append(cells)
    table = plain_table(["benchmark", "point", "us", "noise", "GB/s", "GFLOP/s"], rows)
    return f"<details><summary>{len(results)} points</summary>{table}</details>"


def _labels(table: Table) -> list[str]:
    names = list(table.columns)
    return [", ".join(f"{name} {table[name][i]}" for name in names) for i in range(len(table))]


def _words(result: Result) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in result.axes.items())


def _facts(directory: Path) -> dict[str, Any]:
    document = json.loads((directory / DEVICE_FILE).read_text(encoding="utf-8"))
    facts: dict[str, Any] = document.get("identity", {})
    return facts
