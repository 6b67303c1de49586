"""Sentences on the page: the verdict, what figures show, and what the metrics mean. Plain text, not yet escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dashboards.content import ArmResult, Content
from dashboards.documents import Plan
from dashboards.numerals import limit, number, percent
from dashboards.result_files import Run
from dashboards.series import Band, Float64, Split

DEFINITIONS = {
    "TTFT": "Time to first token: from sending a request until its first output token; queueing and prefill included.",
    "TPOT": "Time per output token of a request: (E2EL - TTFT) / (output tokens - 1). One token alone has none; for "
    "goodput it counts as 0.",
    "ITL": "Inter-token latency: every gap between two tokens, pooled over all requests, so long outputs weigh more.",
    "E2EL": "End-to-end latency: from sending a request until its last output token.",
    "P50, P90, P99": "Percentiles with linear interpolation. Rejected requests enter no latency statistic.",
    "Request throughput": "Completed requests / duration, which runs from the start of the client to the last token.",
    "Goodput": "Requests that meet every limit (value <= limit) / duration.",
    "Output throughput": "Output tokens / duration; total token throughput counts input tokens as well.",
    "Tokenise": "Stage of a request on its way through the API server: parsing, tokenising, and its tokens' way back.",
    "Queue": "Stage of a request from there until it is first scheduled.",
    "Prefill": "Stage from first scheduled until the first token, less the time preempted.",
    "Decode": "Stage from the first token until the last, less the time preempted.",
    "Preempted": "From each preemption until scheduled again. The stages of a request sum to its E2EL exactly.",
}


def verdict(content: Content) -> list[str]:
    """The answer of the page, in one or two paragraphs."""
    paragraphs = []
    if content.comparison is not None:
        answer = content.comparison.verdict
        paragraphs.append(f"N{answer[1:]}" if answer.startswith("no difference") else answer)
    elif len(content.arms) > 1:
        paragraphs += _side_by_side(content.arms)
    elif content.arms:
        paragraphs += _single(content.arms[0])
    if content.plan is not None:
        paragraphs.append(plan_words(content.plan))
    return paragraphs


def _single(arm: ArmResult) -> list[str]:
    run = arm.run
    assert run is not None, "a lone arm comes from a run directory"
    summary = run.summary
    if not summary.completed:
        return [f"No request was completed ({summary.num_prompts:,} were sent): there is nothing to measure."]
    done = (
        f"{summary.completed:,} of {summary.num_prompts:,} requests completed in {number(summary.duration)} s"
    )
    requests_per_s, tokens_per_s = (
        number(arm.metric(f"{kind}_throughput")) for kind in ("request", "output")
    )
    rates = f"{requests_per_s} requests/s, {tokens_per_s} output tokens/s"
    if not run.limits_ms:
        return [f"{done}: {rates}. The scenario sets no limits (slo), so none is judged.", tails(arm)]
    good = good_requests(run)
    limits = " and ".join(f"{name.upper()} ≤ {limit(most)} ms" for name, most in run.limits_ms.items())
    share = percent(good / summary.num_prompts)
    return [
        f"{share} of the requests met {limits}.",
        f"{done}: {rates}; goodput {number(arm.metric('request_goodput'))}/s. {tails(arm)}",
    ]


def good_requests(run: Run) -> int:
    """How many completed requests met every limit; a TPOT that does not exist counts as 0."""
    met = np.isfinite(run.requests["e2el_s"])
    for name, limit_ms in run.limits_ms.items():
        value_ms = run.requests[f"{name}_s"] * 1e3
        met &= (np.nan_to_num(value_ms) if name == "tpot" else value_ms) <= limit_ms
    return int(met.sum())


def tails(arm: ArmResult) -> str:
    """The P99 of the latencies as a sentence."""
    found = [f"{name.upper()} {number(arm.metric(f'p99_{name}_ms'))} ms" for name in ("ttft", "tpot", "e2el")]
    return f"P99: {', '.join(found)}."


def _side_by_side(arms: Sequence[ArmResult]) -> list[str]:
    """Who is ahead in what, and that this is no proof."""
    ahead: dict[str, list[str]] = {}
    for key, what, unit, best in (
        ("request_goodput", "the highest goodput", "requests/s", max),
        ("p99_ttft_ms", "the lowest P99 TTFT", "ms", min),
        ("p99_tpot_ms", "the lowest P99 TPOT", "ms", min),
    ):
        known = {arm.name: value for arm in arms if (value := arm.metric(key)) is not None}
        if len(set(known.values())) > 1:
            first = best(known, key=lambda name: known[name])
            ahead.setdefault(first, []).append(f"{what} ({number(known[first])} {unit})")
    sentences = [f"{name} has {' and '.join(points)}." for name, points in ahead.items()]
    caution = f"These are {len(arms)} single runs: they cannot say whether a difference is more than chance."
    return [
        " ".join(sentences) or "The runs do not differ in goodput, TTFT or TPOT.",
        f"{caution} servetwin compare can.",
    ]


def plan_words(plan: Plan) -> str:
    """What a plan asks for, what the scenario's own size can do, and what keeps it from more."""
    sentences = []
    at = "" if plan.request_rate is None else f" at {number(plan.request_rate)} requests/s"
    if plan.slo_met is False:
        sentences.append(f"No number of replicas was found that keeps the limits{at}.")
    elif plan.replicas is not None:
        details = [] if plan.gpus is None else [f"{plan.gpus} GPUs" if plan.gpus != 1 else "1 GPU"]
        if plan.cost_per_hour is not None:
            details.append(f"{number(plan.cost_per_hour)} per hour")
        extra = f" ({', '.join(details)})" if details else ""
        sentences.append(f"The limits{at} need {replicas(plan.replicas)}{extra}.")
    if plan.max_request_rate is not None:
        who = "The scenario's service" if plan.scenario_replicas is None else replicas(plan.scenario_replicas)
        verb = "carries" if plan.scenario_replicas in (None, 1) else "carry"
        most = f"{verb} up to {number(plan.max_request_rate)} requests/s"
        sentences.append(f"{who} {most if plan.max_request_rate else 'cannot keep the limits at any rate'}.")
    if plan.explanation:
        sentences.append(f"What gives way: {plan.explanation}")
    elif plan.binding_constraint:
        sentences.append(f"What gives way: {plan.binding_constraint}.")
    return " ".join(sentences) or "The plan holds no size."


def replicas(count: int) -> str:
    """So many replicas."""
    return "1 replica" if count == 1 else f"{count:,} replicas"


def cdf_words(arms: Mapping[str, Float64], limit_ms: float | None) -> list[str]:
    """Median and P99 of each arm, and the share within the limit."""
    words = {}
    for name, seconds in arms.items():
        known = seconds[np.isfinite(seconds)] * 1e3
        if not known.size:
            words[name] = "no values"
            continue
        median, p99 = np.percentile(known, [50, 99])
        words[name] = f"median {number(median)} ms, P99 {number(p99)} ms"
        if limit_ms is not None:
            words[name] += f", {percent(float((known <= limit_ms).mean()))} within the limit"
    return _per_arm(words)


def split_words(arms: Mapping[str, Sequence[Split]]) -> list[str]:
    """The greatest stage of every bar."""
    words = {}
    for name, splits in arms.items():
        parts = []
        for split in splits:
            if split.total > 0:
                stage = max(split.stages, key=lambda stage: split.stages[stage])
                share = percent(split.stages[stage] / split.total)
                parts.append(f"{split.group} mostly {stage.replace('_', ' ')} ({share})")
        words[name] = ", ".join(parts) or "no time spent"
    return _per_arm(words)


def timeline_words(arms: Mapping[str, Mapping[str, Band]]) -> list[str]:
    """Peaks of what the timeline shows."""
    words = {}
    for name, bands in arms.items():
        waiting, running, kv = (float(bands[panel].high.max()) for panel in ("waiting", "running", "kv_use"))
        peaks = f"{waiting:,.0f} waiting, {running:,.0f} running, {number(kv)}% of the KV blocks in use"
        words[name] = f"at most {peaks}"
    return _per_arm(words)


def _per_arm(words: Mapping[str, str]) -> list[str]:
    """A line an arm; the only one needs no name."""
    if len(words) == 1:
        return [f"{line[0].upper()}{line[1:]}." for line in words.values()]
    return [f"{name}: {line}." for name, line in words.items()]
