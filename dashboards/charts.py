"""The plots of a page: figures of its runs, each with a title, a summary in words and a caption."""

from __future__ import annotations

import numpy as np
from plotly.graph_objects import Figure

from dashboards import figures, words
from dashboards.content import Content
from dashboards.documents import Plan
from dashboards.numerals import number
from dashboards.page import Plot
from dashboards.result_files import Run
from dashboards.series import (
    COARSER,
    Band,
    Curve,
    of_replica,
    splits_end_to_end,
    splits_to_first_token,
    timeline_bands,
)

BUCKETS = 480
"""Of the timeline over all replicas: about one a pixel and a half on a wide page."""
BUCKETS_OF_REPLICA = 240
MOST_REPLICAS = 8
"""Beyond these a replica has no timeline of its own, so that the page stays small."""

LATENCY_TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "e2el": "End-to-end latency",
}


def latencies(content: Content) -> list[Plot]:
    """A CDF a metric."""
    plots = []
    for metric, title in LATENCY_TITLES.items():
        arms = {name: run.requests[f"{metric}_s"] for name, run in content.runs.items()}
        if not any(np.isfinite(values).any() for values in arms.values()):
            continue
        limit_ms = content.limits_ms.get(metric)
        plots.append(
            Plot(
                f"cdf-{metric}",
                title,
                figures.latency_cdf(metric, arms, limit_ms),
                words.cdf_words(arms, limit_ms),
            )
        )
    return plots


def stages(content: Content) -> list[Plot]:
    """Stacked bars: end to end, and up to the first token, where decode would hide the rest."""
    runs = {name: run for name, run in content.runs.items() if run.summary.completed}
    if not runs:
        return []
    whole = {name: splits_end_to_end(run.stages, run.requests["e2el_s"]) for name, run in runs.items()}
    first = {name: splits_to_first_token(run.stages, run.requests["ttft_s"]) for name, run in runs.items()}
    return [
        Plot(
            "stages-ttft",
            "Up to the first token",
            figures.stage_bars(first),
            words.split_words(first),
            "Slowest: the 1% of the requests with the greatest TTFT. Means; in brackets how many requests.",
        ),
        Plot(
            "stages-e2el",
            "End to end",
            figures.stage_bars(whole),
            words.split_words(whole),
            "Slowest: the 1% of the requests with the greatest E2EL.",
        ),
    ]


def over_time(content: Content) -> list[Plot]:
    """Queue, batch size, KV use and tokens per second of all runs on one axis, and of single replicas."""
    runs = {name: run for name, run in content.runs.items() if run.timeline["t_s"].size}
    if not runs:
        return []
    end_s = max(max(run.summary.duration, float(run.timeline["t_s"].max())) for run in runs.values())
    if end_s <= 0:
        return []
    order = list(content.runs)
    bands = {name: _bands(run, end_s, BUCKETS) for name, run in runs.items()}
    return [
        Plot(
            "timeline",
            "Queue, batch size, KV use and tokens over time",
            figures.timeline({name: bands[name] for name in order if name in bands}, end_s),
            words.timeline_words(bands),
            _timeline_caption(end_s),
            _replica_figures(runs, end_s),
        )
    ]


def plan(content: Content) -> list[Plot]:
    """A figure for every limited metric of a plan."""
    found = content.plan
    if found is None:
        return []
    marks = {"greatest rate": found.max_request_rate, "saturation": found.saturation_rate}
    plots: list[Plot] = []
    for metric in dict.fromkeys([*found.slo, *_metrics(found)]):
        curves = _curves(found, metric)
        if not curves:
            continue
        figure = figures.plan_curve(
            curves, metric, found.slo.get(metric), {name: rate for name, rate in marks.items() if rate}
        )
        points = sum(curve.rates.size for curve in curves.values())
        summary = f"{metric} at {points} combinations of request rate and replicas."
        plots.append(
            Plot(
                f"plan-{len(plots)}",
                metric,
                figure,
                [summary],
                "Crosses: a limit is broken, or too many requests are refused. Saturation: from there on the queue "
                "never drains.",
            )
        )
    return plots


def _metrics(found: Plan) -> list[str]:
    """The metrics of the first point that has any."""
    return next((list(point.metrics) for point in found.curve if point.metrics), [])


def _curves(found: Plan, metric: str) -> dict[str, Curve]:
    """A metric by rate for each number of replicas, the scenario's own first."""
    sizes = sorted({point.replicas for point in found.curve}, key=lambda n: (n != found.scenario_replicas, n))
    curves = {}
    for size in sizes:
        seen = [
            (point.request_rate, value, point.met)
            for point in found.curve
            if point.replicas == size and (value := (point.metrics or {}).get(metric)) is not None
        ]
        if seen:
            rates, values, met = (np.array(column) for column in zip(*sorted(seen), strict=True))
            name = f"{size} replica" if size == 1 else f"{size} replicas"
            curves[name] = Curve(rates.astype(np.float64), values.astype(np.float64), met.astype(np.bool_))
    return curves


def _bands(run: Run, end_s: float, buckets: int, replica: int | None = None) -> dict[str, Band]:
    requests, timeline = run.requests, run.timeline
    first = requests["arrival_s"] + requests["ttft_s"]
    if replica is not None:
        timeline, first = of_replica(timeline, replica), first[requests["replica"] == replica]
    return timeline_bands(timeline, first[np.isfinite(first)], run.usable_blocks, end_s, buckets)


def _replica_figures(runs: dict[str, Run], end_s: float) -> dict[str, Figure]:
    """Timelines of single replicas by name; none where there is one replica, or too many."""
    most = max(run.summary.sim.replicas for run in runs.values())
    if not 1 < most <= MOST_REPLICAS:
        return {}
    return {
        f"replica {index}": figures.timeline(
            {name: _bands(run, end_s, BUCKETS_OF_REPLICA, index) for name, run in runs.items()}, end_s
        )
        for index in range(most)
    }


def _timeline_caption(end_s: float) -> str:
    width_s = end_s / BUCKETS
    width = f"{number(width_s)} s" if width_s >= 1 else f"{number(width_s * 1e3)} ms"
    return (
        f"Each point is a bucket of {width} ({BUCKETS} in all; half as many for a single replica). The line is its "
        "mean; the shaded band reaches from the least to the greatest value in it, so no peak is lost. Requests are "
        "summed over the replicas; KV use is of all their blocks, as at the start of each batch. Rates are means over "
        f"{COARSER} such buckets."
    )
