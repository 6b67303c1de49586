"""A validation in words and numbers, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibration.profile_text import table
from calibration.serving.measured_run import RATES
from calibration.serving.scores import Pair, Score, score
from calibration.serving.tolerances import Verdict
from calibration.serving.validation import Validation, worst

_HEAD: Final = ["count", "MAPE", "median", "P90", "P99", "bias", "worst"]
_INTERVALS: Final = ["in interval", "half-width"]
_NAMED: Final = 3
"""So many runs are named where many share a reason."""
_FEW: Final = 4
"""Of more metrics than these less is said of each."""


def validation_lines(validation: Validation) -> str:
    """Tables by metric, worst cases, what was scored apart, refused or left out, caveats; the tolerances last."""
    parts = [_first_line(validation)]
    scored = validation.scored
    if scored:
        parts.append(_overview(scored))
        parts += filter(None, (_groups(validation, metric, pairs) for metric, pairs in scored.items()))
        parts.append(_worst_table(scored))
    parts += [_apart_table(reason, metrics) for reason, metrics in validation.apart.items()]
    parts += _left_out(validation)
    if validation.caveats:
        parts.append(
            "\n".join(
                f"note: {caveat} ({_count(len(runs), 'run')})" for caveat, runs in validation.caveats.items()
            )
        )
    if validation.verdicts:
        parts.append("\n".join(map(_verdict_line, validation.verdicts)))
    return "\n\n".join(parts)


def _first_line(validation: Validation) -> str:
    against = "" if validation.profile is None else f", by the profile {validation.profile}"
    return (
        f"{_count(validation.runs, 'run')} of {', '.join(validation.data)}{against}\n"
        "error: predicted / measured - 1; MAPE, median, P90 and P99 are of its size"
    )


def _overview(scored: Mapping[str, Sequence[Pair]]) -> str:
    """One row a metric: of all its pairs; with what their intervals cover, where there are any."""
    scores = {metric: found for metric, pairs in scored.items() if (found := score(pairs))}
    intervals = any(found.covered is not None for found in scores.values())
    rows = [["all", *_HEAD, *(_INTERVALS if intervals else ())]]
    rows += [
        [metric, *_cells(found), *(_interval_cells(found) if intervals else ())]
        for metric, found in scores.items()
    ]
    return table(rows)


def _groups(validation: Validation, metric: str, pairs: Sequence[Pair]) -> str | None:
    """One row a group, of one metric; None where there is but one group each."""
    rows = [
        [_group_name(labels), *_cells(found)]
        for grouping in validation.groupings(pairs)
        if len(grouping.scores) > 1
        for labels, found in grouping.scores
    ]
    return table([[metric, *_HEAD], *rows]) if rows else None


def _group_name(labels: Mapping[str, object]) -> str:
    """A group by its labels; a value that is a number says what it counts."""
    words = (
        "-" if value is None else value if isinstance(value, str) else f"{name} {value}"
        for name, value in labels.items()
    )
    return ", ".join(words)


def _cells(found: Score) -> list[str]:
    sizes = (found.mape, found.p50_abs_pct_err, found.p90_abs_pct_err, found.p99_abs_pct_err)
    return [str(found.count), *(f"{size:.1%}" for size in sizes), f"{found.bias:+.1%}", _signed(found.worst)]


def _interval_cells(found: Score) -> list[str]:
    shares = (found.covered, found.half_width)
    return ["" if share is None else f"{share:.1%}" for share in shares]


def _signed(pair: Pair) -> str:
    return "" if pair.error is None else f"{pair.error:+.1%}"


def _worst_table(scored: Mapping[str, Sequence[Pair]]) -> str:
    most = _NAMED if len(scored) <= _FEW else 1
    rows = [["worst cases", "error", "measured", "predicted", "run"]]
    for pair in (pair for pairs in scored.values() for pair in worst(pairs, most)):
        values = map(_value, (pair.measured, pair.predicted))
        rows.append([pair.metric, _signed(pair), *values, pair.name])
    aligned = table([row[:-1] for row in rows]).splitlines()
    return "\n".join(f"{line}  {row[-1]}" for line, row in zip(aligned, rows, strict=True))


def _value(value: float | None) -> str:
    """Four digits, or the whole number where that is longer."""
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _apart_table(reason: str, metrics: Mapping[str, Sequence[Pair]]) -> str:
    """Every metric where they are few, else means and rates; --json has all."""
    few = {name: pairs for name, pairs in metrics.items() if name.startswith("mean_") or name in RATES}
    return f"scored apart: {reason}\n{_overview(metrics if len(metrics) <= _FEW else few or metrics)}"


def _left_out(validation: Validation) -> list[str]:
    lines = [
        f"refused: {_count(count, 'request')} of {run} could not be served"
        for run, count in validation.refused.items()
    ]
    reasons: dict[str, list[str]] = {}
    for one in validation.left_out:
        reasons.setdefault(one.why, []).append(one.run if one.metric is None else f"{one.run} {one.metric}")
    lines += [f"left out: {why} ({_some(names)})" for why, names in reasons.items()]
    if validation.blind:
        lines.append(
            f"predicted alone, for no results are known: {_count(len(validation.blind), 'run')}; "
            "--out keeps the predictions"
        )
    return ["\n".join(lines)] if lines else []


def _verdict_line(one: Verdict) -> str:
    limit = one.tolerance
    if one.value is None:
        return f"tolerance NOT met: of {limit.metric} nothing was scored"
    said = "met" if one.met else "NOT met"
    return (
        f"tolerance {said}: {limit.metric} {limit.statistic} {one.value:.2%}, at most {100 * limit.limit:g}%"
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
