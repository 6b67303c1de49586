"""The page of measured runs: predicted against measured, the pattern of the errors, scores, worst cases.

Made from scores.json and predictions.parquet alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dashboards import serving_charts
from dashboards.numerals import number
from dashboards.page import facts_list, page, plain_table, plot_html, section, text
from dashboards.serving_files import (
    Pairs,
    ScoreDocument,
    ScoresDocument,
    ToleranceDocument,
    Value,
    read_pairs,
    read_scores,
)
from workloads.replacing import replacing

PAGE: Final = "report.html"
_HEAD: Final = ("count", "MAPE", "median", "P90", "P99", "bias", "worst", "worst run")
_INTERVALS: Final = ("in interval", "half-width")
_FIRST: Final = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")
"""What the verdict speaks of, where it was scored."""
_NAMED: Final = 5
_FEW: Final = 4
"""Of more metrics than these the details are folded."""


def render(directory: Path) -> Path:
    """Write report.html into a directory that `servetwin validate serving --out` wrote."""
    scores = read_scores(directory)
    pairs = read_pairs(directory, scores.labels)
    target = directory / PAGE
    with replacing(target, force=True) as draft:
        draft.write_text(serving_html(scores, pairs), encoding="utf-8")
    return target


def serving_html(scores: ScoresDocument, pairs: Pairs) -> str:
    """The page, from top to bottom."""
    title = f"Predicted against measured: {', '.join(scores.data)}"
    metrics = [metric for metric in scores.scores if len(pairs.of_metric(metric, apart=False))]
    return page(
        title,
        [
            f"<header><h1>{text(title)}</h1><p class='muted'>{text(_subtitle(scores))}</p></header><main>",
            _verdict(scores),
            section("Scores", *_score_tables(scores)),
            section("Predicted against measured", *_plots(pairs, metrics, scores)),
            section("The errors' pattern", _residuals(pairs, metrics)),
            section("Worst cases", _worst(scores)),
            section("Scored apart", _apart(scores)),
            section("Not scored", _list(_not_scored(scores))),
            section("What is not known", _list(_caveats(scores))),
            section("What this stands on", facts_list(_facts(scores))),
            "</main>",
        ],
    )


def _subtitle(scores: ScoresDocument) -> str:
    blind = f", {len(scores.blind)} of them without results" if scores.blind else ""
    return f"{scores.runs} measured runs{blind}, simulated from what was offered to them."


def _verdict(scores: ScoresDocument) -> str:
    shown = [metric for metric in _FIRST if metric in scores.scores] or list(scores.scores)[:3]
    lines = [f"{metric}: {_sentence(scores.scores[metric])}" for metric in shown]
    lines += [_tolerance(one) for one in scores.tolerances]
    body = "".join(f"<p>{text(line)}</p>" for line in lines or ["Nothing was scored."])
    return f'<section class="verdict"><h2>Verdict</h2>{body}</section>'


def _sentence(found: ScoreDocument) -> str:
    covered = "" if found.covered is None else f"; {found.covered:.0%} lie in their interval"
    return (
        f"half of {found.count} within {found.p50_abs_pct_err:.1%}, nine tenths within "
        f"{found.p90_abs_pct_err:.1%}, on average {found.bias:+.1%}{covered}."
    )


def _tolerance(one: ToleranceDocument) -> str:
    if one.value is None:
        return f"Of {one.metric} nothing was scored, so its tolerance is not met."
    said = "is met" if one.met else "is NOT met"
    return f"{one.metric}: {one.statistic} {one.value:.2%}; the tolerance of {100 * one.limit:g}% {said}."


def _score_tables(scores: ScoresDocument) -> Iterable[str]:
    """All pairs, a row a metric; then each metric by group, folded where there are many."""
    if scores.scores:
        intervals = any(found.covered is not None for found in scores.scores.values())
        head = ("all", *_HEAD[:-1], *(_INTERVALS if intervals else ()), _HEAD[-1])
        rows = []
        for metric, found in scores.scores.items():
            *cells, worst = _cells(found)
            rows.append([metric, *cells, *(_interval_cells(found) if intervals else ()), worst])
        yield _scrolling(head, rows)
    for metric, found in scores.scores.items():
        alike = Counter(tuple(group.labels) for group in found.groups)
        rows = [[_group(g.labels), *_cells(g)] for g in found.groups if alike[tuple(g.labels)] > 1]
        if rows:
            yield _folded(metric, _scrolling((metric, *_HEAD), rows), fold=len(scores.scores) > _FEW)


def _group(labels: Mapping[str, Value]) -> str:
    words = (
        "-" if value is None else value if isinstance(value, str) else f"{name} {value}"
        for name, value in labels.items()
    )
    return ", ".join(words)


def _cells(found: ScoreDocument) -> list[str]:
    sizes = (found.mape, found.p50_abs_pct_err, found.p90_abs_pct_err, found.p99_abs_pct_err)
    return [
        f"{found.count:,}",
        *(f"{size:.1%}" for size in sizes),
        f"{found.bias:+.1%}",
        f"{found.worst.error:+.1%}",
        found.worst.run,
    ]


def _interval_cells(found: ScoreDocument) -> list[str]:
    shares = (found.covered, found.half_width)
    return ["" if share is None else f"{share:.1%}" for share in shares]


def _plots(pairs: Pairs, metrics: Sequence[str], scores: ScoresDocument) -> list[str]:
    if not metrics:
        return []
    shares = [serving_charts.error_shares(pairs, metrics, by) for by in scores.by[:1] or [[]]]
    return [plot_html(plot) for plot in (serving_charts.scatter(pairs, metrics), *shares)]


def _residuals(pairs: Pairs, metrics: Sequence[str]) -> str:
    if not metrics:
        return ""
    return f'<div class="grid">{"".join(map(plot_html, serving_charts.residuals(pairs, metrics)))}</div>'


def _worst(scores: ScoresDocument) -> str:
    if not scores.worst:
        return ""
    head = ("metric", "error", "measured", "predicted", "run", "labels")
    rows = [
        [
            one.metric,
            f"{one.error:+.1%}",
            number(one.measured),
            number(one.predicted),
            one.run,
            _group(one.labels),
        ]
        for one in scores.worst
    ]
    if len(scores.scores) <= _FEW:
        return _scrolling(head, rows)
    first: dict[str, list[str]] = {}
    for row in rows:
        first.setdefault(row[0], row)
    return _scrolling(head, first.values()) + _folded(f"{len(rows)} cases", _scrolling(head, rows), fold=True)


def _apart(scores: ScoresDocument) -> str:
    if not scores.apart:
        return ""
    rows = [[f"{one.reason}: {one.metric}", *_cells(one)] for one in scores.apart]
    return _scrolling(("reason: metric", *_HEAD), rows)


def _not_scored(scores: ScoresDocument) -> list[str]:
    lines = [f"{count} requests of {run} could not be served" for run, count in scores.refused.items()]
    reasons: dict[str, list[str]] = {}
    for one in scores.left_out:
        reasons.setdefault(one.why, []).append(one.run if one.metric is None else f"{one.run} {one.metric}")
    lines += [f"{why}: {_some(names)}" for why, names in reasons.items()]
    if scores.blind:
        lines.append(f"no results are known: {_some(scores.blind)}")
    return lines


def _caveats(scores: ScoresDocument) -> list[str]:
    return [
        f"{caveat} ({', '.join(runs) if len(runs) <= _NAMED else f'{len(runs)} runs'})"
        for caveat, runs in scores.caveats.items()
    ]


def _facts(scores: ScoresDocument) -> dict[str, object]:
    profile = scores.profile or f"shipped, {len(scores.profile_hashes)} of them"
    hashes = ", ".join(digest[:12] for digest in scores.profile_hashes)
    return {"profile": profile, "hashes": hashes, **scores.rules}


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def _folded(title: str, body: str, *, fold: bool) -> str:
    return (
        f"<details><summary>{text(title)}</summary>{body}</details>"
        if fold
        else f"<h3>{text(title)}</h3>{body}"
    )


def _scrolling(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f'<div class="scroll" tabindex="0">{plain_table(head, rows)}</div>'
