"""Tables of the page, as HTML. Whatever comes from files passes `text`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboards.content import ArmResult, Content
from dashboards.documents import Difference
from dashboards.numerals import number
from dashboards.page import swatch, text

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
    head = ["", "mean", "P50", "P90", "P99"]
    latency_table = _table("Latencies over all completed requests [ms]", head, latencies)
    return f'<div class="grid">{latency_table}{_table("Rates over the whole run", [], rates)}</div>'


def arms_table(content: Content) -> str:
    """Metrics by arm, and beside every arm but the first how it differs from that one."""
    arms, stacked = content.arms, _stacked(content)
    head = ["<th scope='col'><span class='muted'>metric</span></th>"]
    for index, arm in enumerate(arms):
        head.append(f"<th scope='col' class='arm'>{swatch(index)}{_breakable(arm.name)}</th>")
        if index and not stacked:
            head.append(f"<th scope='col' class='arm'>against {_breakable(arms[0].name)}</th>")
    bodies = []
    for keys in _groups(content):
        rows = "".join(_arm_row(content, key, title) for key, title in keys if _known(arms, key))
        if rows:
            bodies.append(f"<tbody>{rows}</tbody>")
    return (
        f'<div class="scroll" tabindex="0"><table{" class=many" if stacked else ""}>'
        f"<caption><span>{text(_caption(content))}</span></caption>"
        f"<thead><tr>{''.join(head)}</tr></thead>{''.join(bodies)}</table></div>"
    )


def facts_table(caption: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """Rows of facts under the names of the first row's."""
    heads = list(next(iter(rows.values()), {}))
    body = "".join(
        _row(title, [text(facts.get(head, "-")) for head in heads]) for title, facts in rows.items()
    )
    return _table(caption, ["", *heads], body)


def higher_is_better(metric: str) -> bool:
    """Latencies shall be low, rates high."""
    return not metric.endswith("_ms")


def judgement(difference: Difference, metric: str) -> str:
    """What an interval shows: better, worse, or that no difference is shown."""
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


def _stacked(content: Content) -> bool:
    """Whether differences stand below the values, since columns of their own would be too many."""
    return len(content.arms) > 2


def _arm_row(content: Content, key: str, title: str) -> str:
    cells: list[str] = []
    first = content.arms[0].metric(key)
    for index, arm in enumerate(content.arms):
        value = arm.metric(key)
        cells.append(number(value))
        if index:
            difference = content.difference(arm.name, key)
            lines = [_relative(first, value)] if difference is None else _interval(difference, key)
            if _stacked(content):
                cells[-1] += "".join(f"<br><small>{line}</small>" for line in lines)
            else:
                cells.append(" ".join(lines))
    deciding = content.comparison is not None and content.comparison.metric == key
    return _row(title, cells, "decides" if deciding else "")


def _relative(first: float | None, value: float | None) -> str:
    if first is None or value is None or first == 0:
        return "-"
    return _change(value / first - 1)


def _interval(difference: Difference, key: str) -> list[str]:
    """A difference, and its interval with what that shows."""
    if difference.delta is None:
        return ["-"]
    shown = _signed(difference.delta)
    if difference.relative is not None:
        shown += f" ({_change(difference.relative)})"
    if difference.ci_low is None or difference.ci_high is None:
        return [shown]
    word = judgement(difference, key)
    low, high = _signed(difference.ci_low), _signed(difference.ci_high)
    kind = word.partition(" ")[0]
    return [shown, f"<small>[{low}, {high}] <span class='{kind}'>{word}</span></small>"]


def _breakable(name: str) -> str:
    """A name, as HTML that may be broken where people would."""
    return text(name).replace("_", "_<wbr>").replace("=", "=<wbr>")


def _change(share: float) -> str:
    if abs(share) < 0.0005:
        return "0.0%"
    if share >= 9:
        return f"{number(1 + share)} times"
    return f"{share:+.1%}".replace("-", "\u2212")


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value).replace("-", "\u2212", 1)


def _caption(content: Content) -> str:
    comparison = content.comparison
    if comparison is None:
        return "Single runs; the change is relative to the first and has no interval."
    confidence = "" if comparison.confidence is None else f" ({comparison.confidence:.0%})"
    parts = [
        f"Paired difference to the first arm: relative in round brackets, interval{confidence} in square ones."
    ]
    if comparison.metric is not None:
        parts.append(f"{comparison.metric} (bold) decides.")
    if comparison.replications is not None:
        noun = "replication" if comparison.replications == 1 else "replications"
        parts.append(
            f"Means over {comparison.replications} {noun}, each with the same requests in every arm."
        )
    warmup = comparison.warmup
    if warmup is not None and warmup.removed:
        left_out = f"the first {warmup.removed:,} of {warmup.requests:,} requests"
        parts.append(f"Warm-up: {left_out} do not count ({warmup.rule}).")
    elif warmup is not None:
        parts.append(f"Warm-up: {warmup.rule if warmup.rule.startswith('none') else 'none found'}.")
    return " ".join(parts)


def _row(title: str, cells: Sequence[str], kind: str = "") -> str:
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    return f"{opening}<th scope='row'>{text(title)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(caption: str, head: Sequence[str], rows: str) -> str:
    cells = "".join(f"<th scope='col'>{text(cell)}</th>" if cell else "<td></td>" for cell in head)
    return (
        f'<div class="scroll" tabindex="0"><table><caption><span>{text(caption)}</span></caption>'
        f"{f'<thead><tr>{cells}</tr></thead>' if head else ''}<tbody>{rows}</tbody></table></div>"
    )
