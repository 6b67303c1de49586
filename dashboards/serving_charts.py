"""The plots of measured against predicted runs, each for every metric that was scored."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dashboards import theme
from dashboards.figures import blank, label
from dashboards.page import Plot
from dashboards.serving_files import Pairs, Value

SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross", "star", "triangle-down", "pentagon")
BAND: Final = 0.1
"""Half the width of the band around the line of equal values."""
_IN_VIEW: Final = 90
"""Percentile of |error| that an axis reaches half beyond; a few far off would hide the pattern of the rest."""
_LEAST_VIEW_PCT: Final = 15.0
_TICK_RATIO: Final = 1.25
"""Neighbours on an axis that are closer than this share no room for their numbers."""
RESIDUALS_AGAINST: Final = {
    "concurrency": "concurrency",
    "request_rate": "requests/s",
    "rate_rps": "requests/s",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "tensor_parallel_size": "GPUs that share a layer (tensor_parallel_size)",
}
"""Labels that residuals are drawn against first, with the words of their axis; then come other numbers."""
UNITS: Final = {"request_throughput": "requests/s", "output_throughput": "tokens/s"}

_FAR_OFF: Final = "A double click shows what lies beyond the axis, too."
Figure = Any


def unit(metric: str) -> str:
    return UNITS.get(metric, "ms")


def scatter(pairs: Pairs, metrics: Sequence[str]) -> Plot:
    """Predicted against measured, both axes logarithmic: colour by model, symbol by system."""
    return _plot(
        "against",
        "Predicted against measured",
        metrics,
        partial(_scatter, pairs),
        [_scatter_words(metric, pairs.of_metric(metric, apart=False)) for metric in metrics],
        "On logarithmic axes, with a band of 10% to both sides of equality. Open and grey: scored apart.",
    )


def residuals(pairs: Pairs, metrics: Sequence[str]) -> list[Plot]:
    """Errors against every label that is a number and differs between runs, and against what was measured."""
    plots = []
    for index, name in enumerate([*_numeric_labels(pairs), None]):
        words = "what was measured" if name is None else _axis_words(name)
        plots.append(
            _plot(
                f"residuals-{index}",
                f"Errors against {words}",
                metrics,
                partial(_residuals, pairs, name),
                [_trend_words(metric, pairs.of_metric(metric, apart=False), name) for metric in metrics],
                _FAR_OFF,
            )
        )
    return plots


def error_shares(pairs: Pairs, metrics: Sequence[str], by: Sequence[str]) -> Plot:
    """Share of the pairs whose |error| stays within a limit, by group."""
    return _plot(
        "errors",
        f"Share within an error, by {', '.join(by)}" if by else "Share within an error",
        metrics,
        partial(_error_shares, pairs, by),
        [_within_words(metric, pairs.of_metric(metric, apart=False)) for metric in metrics],
        _FAR_OFF,
    )


def _plot(
    name: str,
    title: str,
    metrics: Sequence[str],
    draw: Callable[[str], Figure],
    summary: Sequence[str],
    caption: str,
) -> Plot:
    first, *rest = metrics
    choices = {metric: draw(metric) for metric in rest}
    return Plot(name, title, draw(first), summary, caption, choices, first)


def _scatter(pairs: Pairs, metric: str) -> Figure:
    figure = blank(480, legend=True)
    usual, apart = pairs.of_metric(metric, apart=False), pairs.of_metric(metric, apart=True)
    values = np.concatenate([p.numbers[name] for p in (usual, apart) for name in ("measured", "predicted")])
    values = values[values > 0]
    ends = np.array([values.min() / 1.3, values.max() * 1.3])
    edge = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, "line": {"width": 0}}
    figure.add_scatter(x=ends.tolist(), y=((1 - BAND) * ends).tolist(), **edge)
    figure.add_scatter(
        x=ends.tolist(), y=((1 + BAND) * ends).tolist(), fill="tonexty", fillcolor=f"{theme.MUTED}26", **edge
    )
    figure.add_scatter(
        x=ends.tolist(),
        y=ends.tolist(),
        mode="lines",
        name="equal",
        hoverinfo="skip",
        line={"color": theme.MUTED, "dash": "dot", "width": 1.5},
    )
    for name, style, members in _traces(usual):
        _add_points(figure, members, members.numbers["measured"], members.numbers["predicted"], name, style)
    if len(apart):
        style = {"color": theme.MUTED, "symbol": "circle-open", "size": 8}
        _add_points(
            figure, apart, apart.numbers["measured"], apart.numbers["predicted"], "scored apart", style
        )
    reach = np.log10(ends).tolist()
    figure.update_xaxes(title_text=f"measured {label(metric)} [{unit(metric)}]", type="log", range=reach)
    figure.update_yaxes(title_text=f"predicted [{unit(metric)}]", type="log", range=reach)
    figure.update_layout(margin={"b": 96})
    return figure


def _residuals(every: Pairs, name: str | None, metric: str) -> Figure:
    pairs, figure = every.of_metric(metric, apart=False), blank(300)
    for trace, style, members in _traces(pairs):
        x = members.numbers["measured"] if name is None else members.number(name)
        assert x is not None
        _add_points(figure, members, x, 100 * members.numbers["error"], trace, {**style, "size": 7})
    title = f"measured {label(metric)} [{unit(metric)}]" if name is None else label(_axis_words(name))
    values = pairs.numbers["measured"] if name is None else pairs.number(name)
    assert values is not None
    known = values[np.isfinite(values)]
    logarithmic = bool(known.size) and known.min() > 0 and known.max() >= 8 * known.min()
    figure.update_xaxes(title_text=title, type="log" if logarithmic else "linear")
    distinct = np.unique(known)
    if name is not None and 0 < distinct.size <= 8 and (distinct[1:] >= _TICK_RATIO * distinct[:-1]).all():
        figure.update_xaxes(tickvals=distinct.tolist())
    reach = _view_pct(pairs)
    figure.update_yaxes(title_text="predicted / measured - 1 [%]", range=[-reach, reach], zeroline=True)
    figure.add_hline(y=0, line={"color": theme.MUTED, "dash": "dot", "width": 1.5})
    return figure


def _error_shares(every: Pairs, by: Sequence[str], metric: str) -> Figure:
    pairs, figure = every.of_metric(metric, apart=False), blank(360, legend=True)
    for index, (name, members) in enumerate(_groups(pairs, by).items()):
        size = np.sort(100 * np.abs(members.numbers["error"]))
        figure.add_scatter(
            x=[0.0, *size.tolist()],
            y=[0.0, *(100 * np.arange(1, size.size + 1) / size.size).tolist()],
            mode="lines",
            name=label(name),
            line={
                "color": theme.arm_colour(index),
                "dash": theme.arm_dash(index),
                "width": 2,
                "shape": "hv",
            },
            hovertemplate="%{y:.0f}% within %{x:.1f}%<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(title_text="|predicted / measured - 1| [%]", range=[0, _view_pct(pairs)])
    figure.update_yaxes(title_text="share [%]", range=[0, 101], tickvals=[0, 25, 50, 75, 90, 100])
    figure.update_layout(margin={"b": 96})
    return figure


def _traces(pairs: Pairs) -> Iterable[tuple[str, dict[str, object], Pairs]]:
    """Points of each model on each system: name, marker, rows."""
    models = _values(pairs.label("model"))
    systems = _values(pairs.label("system"))
    for model in models:
        for system in systems:
            mask = [
                pair == (model, system)
                for pair in zip(pairs.label("model"), pairs.label("system"), strict=True)
            ]
            members = pairs.where(np.array(mask, dtype=np.bool_))
            if len(members):
                style: dict[str, object] = {
                    "color": theme.arm_colour(models.index(model)),
                    "symbol": SYMBOLS[systems.index(system) % len(SYMBOLS)],
                    "size": 8,
                }
                yield _words([model, system]), style, members


def _add_points(
    figure: Figure,
    pairs: Pairs,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    name: str,
    marker: Mapping[str, object],
) -> None:
    numbers = pairs.numbers
    details = zip(
        numbers["measured"],
        numbers["predicted"],
        100 * numbers["error"],
        [_interval(low, high) for low, high in zip(numbers["low"], numbers["high"], strict=True)],
        [f"<br>{label(reason)}" if reason else "" for reason in pairs.names["apart"]],
        strict=True,
    )
    figure.add_scatter(
        x=x.tolist(),
        y=y.tolist(),
        mode="markers",
        name=label(name),
        marker={"opacity": 0.75, **marker},
        text=[html.escape(str(run), quote=False) for run in pairs.names["run"]],
        customdata=[list(row) for row in details],
        hovertemplate=(
            "%{text}<br>measured %{customdata[0]:,.4~r}, predicted %{customdata[1]:,.4~r}%{customdata[3]}: "
            "%{customdata[2]:+.1f}%%{customdata[4]}<extra>%{fullData.name}</extra>"
        ),
    )


def _interval(low: float, high: float) -> str:
    return "" if np.isnan(low) or np.isnan(high) else f" ({low:,.4g} to {high:,.4g})"


def _groups(pairs: Pairs, by: Sequence[str]) -> dict[str, Pairs]:
    keys = list(zip(*(pairs.label(name) for name in by), strict=True)) if by else [()] * len(pairs)
    found = {}
    for key in _values(keys):
        mask = np.array([other == key for other in keys], dtype=np.bool_)
        found[_words(key) or "all"] = pairs.where(mask)
    return found


def _values(column: Sequence[Any]) -> list[Any]:
    """What there is in a column, in the order in which it first comes."""
    return list(dict.fromkeys(column))


def _words(values: Sequence[Value]) -> str:
    return ", ".join(str(value) for value in values if value is not None)


def _numeric_labels(pairs: Pairs) -> list[str]:
    """Labels that are numbers and take more than one value: those of `RESIDUALS_AGAINST` first."""
    names = [*RESIDUALS_AGAINST, *sorted(set(pairs.labels) - set(RESIDUALS_AGAINST))]
    found = []
    for name in names:
        values = pairs.number(name)
        if values is not None and np.unique(values[np.isfinite(values)]).size > 1:
            found.append(name)
    return found


def _axis_words(name: str) -> str:
    return RESIDUALS_AGAINST.get(name, name.replace("_", " "))


def _view_pct(pairs: Pairs) -> float:
    """How far an axis of errors reaches [%]: nearly all points are in view."""
    size = 100 * np.abs(pairs.numbers["error"])
    return max(_LEAST_VIEW_PCT, 1.5 * float(np.percentile(size, _IN_VIEW)))


def _scatter_words(metric: str, pairs: Pairs) -> str:
    within = float(np.mean(np.abs(pairs.numbers["error"]) <= BAND))
    return f"{metric}: {within:.0%} of {len(pairs)} within {BAND:.0%}"


def _within_words(metric: str, pairs: Pairs) -> str:
    size = np.abs(pairs.numbers["error"])
    shares = ", ".join(f"{np.mean(size <= most):.0%} within {most:.0%}" for most in (0.05, 0.1, 0.2))
    return f"{metric}: {shares}{_beyond_words(pairs)}"


def _trend_words(metric: str, pairs: Pairs, name: str | None) -> str:
    """Medians of the error in the lower and the upper half of what it is drawn against."""
    values = pairs.numbers["measured"] if name is None else pairs.number(name)
    assert values is not None
    known = np.isfinite(values)
    if not known.any():
        return f"{metric}: not known"
    middle = np.median(values[known])
    halves = (values <= middle, values > middle)
    medians = [f"{np.median(pairs.numbers['error'][half]):+.1%}" for half in halves if half.any()]
    said = f"up to {middle:,.4g} the median error is {medians[0]}"
    above = f", above it {medians[1]}" if len(medians) > 1 else ""
    return f"{metric}: {said}{above}{_beyond_words(pairs)}"


def _beyond_words(pairs: Pairs) -> str:
    beyond = int((100 * np.abs(pairs.numbers["error"]) > _view_pct(pairs)).sum())
    return f"; {beyond} lie beyond the axis" if beyond else ""
