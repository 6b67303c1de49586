"""A validation in words and numbers, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from calibration.profile_text import table
from calibration.serving.scores import Pair, Score, score
from calibration.serving.tolerances import Verdict
from calibration.serving.validation import Grouping, Validation, worst

_HEAD: Final = ["count", "MAPE", "median", "P90", "P99", "bias", "worst"]
_NAMED: Final = 3
"""So many runs are named where many share a reason."""


def validation_lines(validation: Validation) -> str:
    """Tables by metric, worst cases, what was scored apart, refused or left out, caveats; the tolerances last."""
    parts = [_first_line(validation)]
    parts += [
        _metric_table(metric, validation.groupings(pairs)) for metric, pairs in validation.scored.items()
    ]
    if validation.scored:
        parts.append(
            _worst_table([pair for pairs in validation.scored.values() for pair in worst(pairs, _NAMED)])
        )
    if validation.apart:
        parts.append(_apart_table(validation))
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


def _metric_table(metric: str, groupings: Sequence[Grouping]) -> str:
    rows = [[metric, *_HEAD]]
    for grouping in groupings:
        rows += [
            [group_name(labels) if labels else "all", *_cells(found)] for labels, found in grouping.scores
        ]
    return table(rows)


def group_name(labels: Mapping[str, object]) -> str:
    """A group by its labels; a value that is a number says what it counts."""
    words = (
        "-" if value is None else value if isinstance(value, str) else f"{name} {value}"
        for name, value in labels.items()
    )
    return ", ".join(words)


def _cells(found: Score) -> list[str]:
    sizes = (found.mape, found.p50_abs_pct_err, found.p90_abs_pct_err, found.p99_abs_pct_err)
    return [str(found.count), *(f"{size:.1%}" for size in sizes), f"{found.bias:+.1%}", _signed(found.worst)]


def _signed(pair: Pair) -> str:
    return "" if pair.error is None else f"{pair.error:+.1%}"


def _worst_table(pairs: Sequence[Pair]) -> str:
    rows = [["worst cases", "error", "measured", "predicted", "run"]]
    for pair in pairs:
        values = ("" if value is None else f"{value:,.4g}" for value in (pair.measured, pair.predicted))
        rows.append([pair.metric, _signed(pair), *values, pair.name])
    aligned = table([row[:-1] for row in rows]).splitlines()
    return "\n".join(f"{line}  {row[-1]}" for line, row in zip(aligned, rows, strict=True))


def _apart_table(validation: Validation) -> str:
    rows = [["scored apart", *_HEAD]]
    for reason, metrics in validation.apart.items():
        for metric, pairs in metrics.items():
            found = score(pairs)
            if found is not None:
                rows.append([f"{reason}: {metric}", *_cells(found)])
    return table(rows)


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
