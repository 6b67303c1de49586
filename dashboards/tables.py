"""Tables of the page, as HTML. Whatever comes from files passes `text`."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.content import ArmResult, Content
from dashboards.numerals import number
from dashboards.page import swatch, text
from dashboards.result_files import Difference

LATENCIES = ("ttft", "tpot", "itl", "e2el")
RATES = {
    "request_throughput": "Throughput [requests/s]",
    "request_goodput": "Goodput [requests/s]",
    "output_throughput": "Output [tokens/s]",
    "total_token_throughput": "Input + output [tokens/s]",
}


def run_tables(arm: ArmResult) -> str:
    """Latencies and rates of a single run."""
    percentiles = ("mean", "p50", "p90", "p99")
    latencies = "".join(
        _row(f"{name.upper()}", [number(arm.metric(f"{part}_{name}_ms")) for part in percentiles])
        for name in LATENCIES
    )
    rates = "".join(
        _row(title, [number(arm.metric(key))]) for key, title in RATES.items() if arm.metric(key) is not None
    )
    return _table(
        "Latencies over all completed requests [ms]", ["", "mean", "P50", "P90", "P99"], [latencies]
    ) + _table("Rates over the whole run", ["", "value"], [rates])


def arms_table(content: Content) -> str:
    """Metrics by arm, and beside every arm but the first how it differs from that one."""
    arms = content.arms
    head = ["<th scope='col'><span class='muted'>metric</span></th>"]
    for index, arm in enumerate(arms):
        head.append(f"<th scope='col' class='arm'>{swatch(index)}{text(arm.name)}</th>")
        if index:
            head.append(f"<th scope='col' class='arm'>against {text(arms[0].name)}</th>")
    bodies = []
    for keys in _groups(content):
        rows = "".join(_arm_row(content, key, title) for key, title in keys if _known(arms, key))
        if rows:
            bodies.append(f"<tbody>{rows}</tbody>")
    return (
        f'<div class="scroll" tabindex="0"><table><caption><span>{text(_caption(content))}</span></caption>'
        f"<thead><tr>{''.join(head)}</tr></thead>{''.join(bodies)}</table></div>"
    )


def higher_is_better(metric: str) -> bool:
    """Latencies shall be low, rates high."""
    return not metric.endswith("_ms")


def judgement(difference: Difference, metric: str) -> str:
    """What an interval shows: better, worse, or no difference."""
    low, high = difference.ci_low, difference.ci_high
    if low is None or high is None:
        return ""
    if low <= 0 <= high:
        return "no difference shown"
    return "better" if (low > 0) == higher_is_better(metric) else "worse"


def _groups(content: Content) -> list[list[tuple[str, str]]]:
    groups = [[(f"p{q}_{name}_ms", f"{name.upper()} P{q} [ms]") for q in (50, 90, 99)] for name in LATENCIES]
    groups[LATENCIES.index("itl")].append(("mean_itl_ms", "ITL mean [ms]"))
    groups.append(list(RATES.items()))
    deciding = content.comparison.metric if content.comparison is not None else None
    if deciding is not None and not any(key == deciding for group in groups for key, _ in group):
        groups.insert(0, [(deciding, deciding)])
    return groups


def _known(arms: Sequence[ArmResult], key: str) -> bool:
    return any(arm.metric(key) is not None for arm in arms)


def _arm_row(content: Content, key: str, title: str) -> str:
    cells = []
    first = content.arms[0].metric(key)
    for index, arm in enumerate(content.arms):
        value = arm.metric(key)
        cells.append(number(value))
        if index:
            difference = content.difference(arm.name, key)
            cells.append(_relative(first, value) if difference is None else _interval(difference, key))
    deciding = content.comparison is not None and content.comparison.metric == key
    return _row(title, cells, "decides" if deciding else "")


def _relative(first: float | None, value: float | None) -> str:
    if first is None or value is None or first == 0:
        return "-"
    return f"{value / first - 1:+.1%}"


def _interval(difference: Difference, key: str) -> str:
    if difference.delta is None:
        return "-"
    shown = _signed(difference.delta)
    if difference.relative is not None:
        shown += f" ({difference.relative:+.1%})"
    if difference.ci_low is None or difference.ci_high is None:
        return shown
    word = judgement(difference, key)
    low, high = _signed(difference.ci_low), _signed(difference.ci_high)
    kind = word if word in ("better", "worse") else "muted"
    return f"{shown} <small>[{low}, {high}]</small> <small class='{kind}'>{word}</small>"


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value).replace("-", "\u2212", 1)


def _caption(content: Content) -> str:
    comparison = content.comparison
    if comparison is None:
        return "Single runs; the change is relative to the first and has no interval."
    parts = [
        "Difference to the first arm on the same requests, relative in round brackets, 95% interval in square ones."
    ]
    if comparison.metric is not None:
        parts.append(f"{comparison.metric} (bold) decides.")
    if comparison.replications is not None:
        parts.append(f"{comparison.replications} replications with other requests.")
    if isinstance(comparison.warmup, str | int | float) and not isinstance(comparison.warmup, bool):
        parts.append(f"Warm-up left out: {comparison.warmup}.")
    return " ".join(parts)


def _row(title: str, cells: Sequence[str], kind: str = "") -> str:
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    return f"{opening}<th scope='row'>{text(title)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(caption: str, head: Sequence[str], bodies: Sequence[str]) -> str:
    cells = "".join(f"<th scope='col'>{text(cell)}</th>" if cell else "<td></td>" for cell in head)
    rows = "".join(f"<tbody>{body}</tbody>" for body in bodies)
    return (
        f'<div class="scroll" tabindex="0"><table><caption><span>{text(caption)}</span></caption>'
        f"<thead><tr>{cells}</tr></thead>{rows}</table></div>"
    )
