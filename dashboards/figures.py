"""Figures, each a pure function from a few columns to a Plotly figure; no files, no pages.

A trace belongs to the arm in its `legendgroup` (`arm-0`, ...): the page shows and hides arms by it. Names come from
files, so every one passes `label`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards import theme
from dashboards.numerals import percent
from dashboards.series import QUANTILES, Band, Curve, Float64, Split, quantiles, wide

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

METRICS = {
    "ttft": "TTFT, time to first token [ms]",
    "tpot": "TPOT, time per output token [ms]",
    "e2el": "E2EL, end-to-end latency [ms]",
}
PANELS = {
    "waiting": "Queue: requests waiting",
    "running": "Batch size: requests running",
    "kv_use": "KV cache in use [% of blocks]",
    "output_rate": "Output tokens per second",
    "prompt_rate": "Prompt tokens per second",
}


def label(name: str) -> str:
    """A name as Plotly shall show it, letter by letter: Plotly would read tags in it."""
    shown = name if len(name) <= 60 else f"{name[:57]}..."
    return html.escape(shown, quote=False)


def latency_cdf(metric: str, arms: Mapping[str, Float64], limit_ms: float | None = None) -> go.Figure:
    """Share of requests [%] within a latency, per arm; `arms` holds seconds, NaN where a request has none."""
    figure = blank(height=300)
    for index, (name, seconds) in enumerate(arms.items()):
        points_ms = quantiles(seconds) * 1e3
        if points_ms.size:
            figure.add_scatter(
                x=_small(points_ms),
                y=_small(QUANTILES),
                name=label(name),
                legendgroup=f"arm-{index}",
                mode="lines",
                line={"color": theme.arm_colour(index), "dash": theme.arm_dash(index), "width": 2},
                hovertemplate="%{y:.1f}% within %{x:,.4~r} ms<extra>%{fullData.name}</extra>",
            )
    every = np.concatenate([np.zeros(0), *arms.values()])
    logarithmic = wide(every)
    figure.update_xaxes(title_text=METRICS[metric], type="log" if logarithmic else "linear")
    if logarithmic:
        figure.update_xaxes(range=np.log10(_focus(every * 1e3, limit_ms)).tolist())
    else:
        figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(title_text="requests [%]", range=[0, 101], tickvals=[0, 25, 50, 75, 90, 100])
    if limit_ms is not None:
        _limit_line(figure, limit_ms, logarithmic=logarithmic)
    return figure


def stage_bars(arms: Mapping[str, Sequence[Split]]) -> go.Figure:
    """Mean time per stage as stacked bars: for each arm one bar a group of requests, named above it."""
    rows = [(name, split) for name, splits in arms.items() for split in splits]
    positions = [-float(i) for i in range(len(rows))]
    figure = blank(height=70 + 62 * len(rows), legend=True)
    stages = list(dict.fromkeys(stage for _, split in rows for stage in split.stages))
    for stage in stages:
        times_ms = [split.stages.get(stage, 0.0) * 1e3 for _, split in rows]
        if not any(times_ms):
            continue
        colour = theme.STAGES.get(stage, theme.OTHER_STAGE)
        shares = [part / (split.total * 1e3 or 1.0) for part, (_, split) in zip(times_ms, rows, strict=True)]
        figure.add_bar(
            x=times_ms,
            y=positions,
            name=label(stage.replace("_", " ")),
            orientation="h",
            width=0.44,
            marker={"color": colour, "line": {"color": theme.SURFACE, "width": 1}},
            customdata=shares,
            text=[percent(share) if share >= 0.08 else "" for share in shares],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": theme.dark_on(colour)},
            hovertemplate="%{fullData.name}: %{x:,.4~r} ms, %{customdata:.1%}<extra></extra>",
        )
    for at, (name, split) in zip(positions, rows, strict=True):
        prefix = f"<b>{label(name)}</b> · " if len(arms) > 1 else ""
        _heading(
            figure, f"{prefix}{split.group} ({split.requests:,}): {split.total * 1e3:,.0f} ms", y=at + 0.26
        )
    figure.update_layout(
        barmode="stack", uniformtext={"minsize": 10, "mode": "hide"}, margin={"l": 8, "r": 12, "t": 8}
    )
    figure.update_yaxes(visible=False, range=[0.35 - len(rows), 0.75], fixedrange=True)
    figure.update_xaxes(title_text="mean time [ms]", rangemode="tozero", tickformat=",")
    return figure


def timeline(
    arms: Mapping[str, Mapping[str, Band]], end_s: float, panels: Mapping[str, str] = PANELS
) -> go.Figure:
    """Panels over time, one below the other: a line for the mean of each bucket in a band from least to greatest.

    `panels` holds their headings; an arm may lack a panel, and a band may have NaN where there is nothing to show.
    """
    figure = blank(height=60 + 130 * len(panels))
    gap = 0.3 / len(panels)
    tall = (1 - gap * (len(panels) - 1)) / len(panels)
    for row, (panel, title) in enumerate(panels.items()):
        suffix = str(row + 1) if row else ""
        for index, (name, bands) in enumerate(arms.items()):
            if panel in bands:
                _add_band(figure, index, name, bands[panel], f"y{suffix}")
        top = 1 - row * (tall + gap)
        figure.layout[f"yaxis{suffix}"] = {
            **axis_style(),
            "domain": [max(0.0, top - tall), top],
            "rangemode": "tozero",
            "nticks": 4,
            "fixedrange": True,
        }
        _heading(figure, title, yref="paper", y=top)
    figure.update_layout(margin={"t": 24}, hovermode="x")
    figure.update_xaxes(title_text="time [s]", anchor=f"y{len(panels)}", range=[0, end_s])
    return figure


def stacked(parts: Mapping[str, Band], end_s: float, unit: str, whole: float | None = None) -> go.Figure:
    """What a sum was made of over time: stacked areas of bucket means, the first at the bottom, up to `whole`."""
    figure = blank(height=300, legend=True)
    for index, (name, share) in enumerate(parts.items()):
        colour = theme.OWNERS[index % len(theme.OWNERS)]
        figure.add_scatter(
            x0=share.width_s / 2,
            dx=share.width_s,
            y=_small(share.mean),
            name=label(name),
            stackgroup="whole",
            mode="lines",
            line={"color": colour, "width": 0.5},
            fillcolor=f"{colour}B0",
            hovertemplate=f"%{{y:,.4~r}} {label(unit)}<extra>%{{fullData.name}}</extra>",
        )
    figure.update_xaxes(title_text="time [s]", range=[0, end_s])
    figure.update_yaxes(title_text=label(unit), rangemode="tozero")
    if whole is not None:
        figure.update_yaxes(range=[0, whole])
    figure.update_layout(hovermode="x unified")
    return figure


def grouped_bars(bars: Mapping[str, Mapping[str, float]], unit: str) -> go.Figure:
    """A group of bars for each arm: what it had of each part."""
    figure = blank(height=300)
    for index, (name, parts) in enumerate(bars.items()):
        figure.add_bar(
            x=[label(part) for part in parts],
            y=list(parts.values()),
            name=label(name),
            legendgroup=f"arm-{index}",
            marker={"color": theme.arm_colour(index)},
            hovertemplate=f"%{{x}}: %{{y:,.4~r}} {label(unit)}<extra>%{{fullData.name}}</extra>",
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(title_text=label(unit), rangemode="tozero")
    return figure


def heat_map(x: Sequence[str], y: Sequence[str], values: Float64, axes: tuple[str, str, str]) -> go.Figure:
    """Values over two named axes; `axes` names x, y and what is shown. Rows of `values` go with `y`."""
    figure = blank(height=120 + 18 * len(y))
    figure.add_heatmap(
        x=list(x),
        y=list(y),
        z=_small(values),
        colorscale="Viridis",
        colorbar={"title": {"text": axes[2], "side": "right"}, "thickness": 12, "outlinewidth": 0},
        hovertemplate=f"{axes[1]} %{{y}}, {axes[0]} %{{x}}: %{{z:,.4~r}}<extra></extra>",
    )
    figure.update_xaxes(title_text=axes[0], type="category")
    figure.update_yaxes(title_text=axes[1], type="category")
    return figure


def plan_curve(
    curves: Mapping[str, Curve], metric: str, limit: float | None, marks: Mapping[str, float]
) -> go.Figure:
    """A metric against the request rate, a line a size of the service; crosses where a limit was broken.

    `marks` are rates worth a vertical line, by what they are.
    """
    figure = blank(height=330, legend=len(curves) > 1)
    for index, (name, curve) in enumerate(curves.items()):
        colour = theme.arm_colour(index)
        figure.add_scatter(
            x=curve.rates.tolist(),
            y=curve.values.tolist(),
            mode="lines+markers",
            name=label(name),
            line={"color": colour, "dash": theme.arm_dash(index), "width": 2},
            marker={
                "size": 8,
                "symbol": ["circle" if ok else "x" for ok in curve.met],
                "color": [colour if ok else theme.LIMIT for ok in curve.met],
            },
            text=["all limits met" if ok else "not all limits met" for ok in curve.met],
            hovertemplate="%{x:,.4~r} requests/s: %{y:,.4~r}, %{text}<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(title_text="request rate [requests/s]", rangemode="tozero")
    figure.update_yaxes(title_text=label(metric), rangemode="tozero")
    if limit is not None:
        line = {"color": theme.LIMIT, "dash": "dash", "width": 1.5}
        words = {"text": f"limit {limit:,.10g}", "font": {"color": theme.LIMIT}, "x": 0, "xanchor": "left"}
        figure.add_hline(y=limit, line=line, annotation=words)
        values = np.concatenate([np.zeros(0), *(curve.values for curve in curves.values())])
        if values.size and values.max() > 4 * limit:  # what breaks the limit by far would hide the rest
            figure.update_yaxes(range=[0, 2 * limit])
    for name, rate in marks.items():
        words = {"text": label(name), "font": {"color": theme.MUTED, "size": 11}, "textangle": -90}
        figure.add_vline(
            x=rate,
            line={"color": theme.MUTED, "dash": "dot", "width": 1.5},
            annotation={**words, "xanchor": "right", "yanchor": "top", "y": 1},
        )
    return figure


def _add_band(figure: go.Figure, index: int, name: str, band: Band, axis: str) -> None:
    """The line of an arm in a panel; its band only where there is one."""
    colour = theme.arm_colour(index)
    common = {"x0": 0, "dx": band.width_s, "yaxis": axis, "legendgroup": f"arm-{index}", "mode": "lines"}

    def upto_end(values: Float64) -> NDArray[np.float32]:
        return _small(np.append(values, values[-1:]))  # a step line ends where its last step begins

    if not np.array_equal(band.low, band.high):
        edge = {"color": colour, "width": 0, "shape": "hv"}
        figure.add_scatter(y=upto_end(band.low), line=edge, hoverinfo="skip", **common)
        fill = {"fill": "tonexty", "fillcolor": f"{colour}40"}
        figure.add_scatter(y=upto_end(band.high), line=edge, hoverinfo="skip", **fill, **common)
    figure.add_scatter(
        y=upto_end(band.mean),
        name=label(name),
        line={"color": colour, "width": 1.5, "shape": "hv"},
        hovertemplate="%{y:,.4~r}<extra>%{fullData.name}</extra>",
        **common,
    )


def _heading(figure: go.Figure, text: str, **position: object) -> None:
    """Words above a bar or a panel, where they need no margin beside it."""
    font = {"color": theme.INK, "size": 12}
    anchors = {"xref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom"}
    figure.add_annotation(text=text, showarrow=False, font=font, **anchors, **position)


def _limit_line(figure: go.Figure, limit_ms: float, *, logarithmic: bool) -> None:
    figure.add_vline(x=limit_ms, line={"color": theme.LIMIT, "dash": "dash", "width": 1.5})
    figure.add_annotation(
        x=np.log10(limit_ms) if logarithmic else limit_ms,
        y=0.02,
        yref="paper",
        text=f"SLO {limit_ms:,.4g} ms",
        showarrow=False,
        textangle=-90,
        xanchor="right",
        yanchor="bottom",
        font={"color": theme.LIMIT, "size": 11},
    )


def _focus(values_ms: Float64, limit_ms: float | None) -> Float64:
    """Ends of a logarithmic axis: all but the fastest 0.1 %, the limit included, a little air on both sides."""
    known = values_ms[np.isfinite(values_ms)]
    ends = [np.percentile(known, 0.1), known.max(), *([] if limit_ms is None else [limit_ms])]
    return np.array([min(ends) / 1.2, max(ends) * 1.2])


def _small(values: Float64) -> NDArray[np.float32]:
    """Half the bytes; seven digits are more than a figure shows."""
    return values.astype(np.float32)


def axis_style() -> dict[str, object]:
    return {
        "gridcolor": theme.GRID,
        "linecolor": theme.GRID,
        "zerolinecolor": theme.GRID,
        "zerolinewidth": 1,
        "tickfont": {"color": theme.MUTED, "size": 11},
        "title": {"font": {"color": theme.MUTED, "size": 12}, "standoff": 8},
        "automargin": True,
        "separatethousands": True,
        "exponentformat": "none",
    }


def blank(height: int, *, legend: bool = False) -> go.Figure:
    """An empty figure in the style of the page, without the 7 kB of Plotly's default template."""
    return go.Figure(
        layout={
            "template": go.layout.Template(),
            "height": height,
            "autosize": True,
            "font": {"family": FONT, "size": 12, "color": theme.INK},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 48, "r": 12, "t": 12, "b": 44},
            "hoverlabel": {
                "bgcolor": theme.SURFACE,
                "bordercolor": theme.MUTED,
                "font": {"color": theme.INK},
            },
            "xaxis": axis_style(),
            "yaxis": axis_style(),
            "showlegend": legend,
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "x": 0,
                "xanchor": "left",
                "y": 0,
                "yanchor": "bottom",
                "yref": "container",
            },
        }
    )
