"""What the page says of its own footing: title, sources, warnings, settings, definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.content import Content
from dashboards.documents import Lock
from dashboards.numerals import limit, number, percent
from dashboards.page import text
from dashboards.result_files import Run
from dashboards.words import DEFINITIONS, replicas


def title(content: Content) -> str:
    """What was simulated, in a line."""
    runs = list(content.runs.values())
    if not runs:
        return _planned(content.lock) if content.plan is not None and not content.arms else "Servetwin report"
    models = dict.fromkeys(run.summary.model_id for run in runs)
    machines = dict.fromkeys(run.summary.sim.profile.name for run in runs)
    return f"{', '.join(models)} on {', '.join(machines)}"


def _planned(lock: Lock | None) -> str:
    """Name the service of a plan, as far as its lock file does."""
    if lock is None or lock.scenario.model is None or lock.profile is None:
        return "Capacity plan"
    return f"Capacity plan: {lock.scenario.model} on {lock.profile.name}"


def subtitle(content: Content) -> str:
    """Kind of page, size of the service, and its load."""
    kinds = {True: "comparison", False: "run" if len(content.arms) == 1 else "runs side by side"}
    kind = kinds[content.comparison is not None] if content.arms else "plan"
    parts = [f"Servetwin {kind}"]
    if content.comparison is not None or len(content.arms) > 1:
        parts.append(f"{len(content.arms)} arms")
    runs = list(content.runs.values())
    if runs:
        parts += list(dict.fromkeys(_service(run) for run in runs))[:3]
        parts += list(dict.fromkeys(_load(run) for run in runs))[:3]
    elif content.plan is not None and content.plan.request_rate is not None:
        parts.append(f"for {number(content.plan.request_rate)} requests/s")
    return " · ".join(parts)


def settings(content: Content) -> str:
    """What each arm of a comparison sets, and what it takes."""
    if content.comparison is None:
        return ""
    rows = []
    for arm in content.comparison.arms:
        parts = [_setting(arm.set)] if arm.set else []
        if arm.gpus is not None:
            parts.append(f"{arm.gpus} GPU" if arm.gpus == 1 else f"{arm.gpus} GPUs")
        if arm.cost_per_hour is not None:
            parts.append(f"{number(arm.cost_per_hour)} per hour")
        if parts:
            rows.append((arm.name, "; ".join(parts)))
    return _list(rows) if rows else ""


def cautions(content: Content) -> str:
    """What a reader of a comparison should know."""
    return _notes(content.comparison.warnings) if content.comparison is not None else ""


def one_replication(content: Content) -> str:
    """Say what the figures of a comparison leave out."""
    comparison = content.comparison
    if comparison is None or not content.runs or (comparison.replications or 1) < 2:
        return ""
    return (
        '<p class="muted">The figures show one replication per arm, the first, whole; the table above is over all '
        f"{comparison.replications}.</p>"
    )


def plan_facts(content: Content) -> str:
    """The numbers of a plan."""
    plan = content.plan
    if plan is None:
        return ""
    size = None if plan.replicas is None else f"{plan.replicas:,}"
    rows = [
        ("Limits", ", ".join(f"{name} ≤ {limit(most)}" for name, most in plan.slo.items()) or None),
        ("Request rate planned for", _rate(plan.request_rate)),
        ("Replicas for it", size if plan.gpus is None or size is None else f"{size} ({plan.gpus:,} GPUs)"),
        ("Their cost per hour", None if plan.cost_per_hour is None else number(plan.cost_per_hour)),
        ("Replicas of the scenario", plan.scenario_replicas),
        ("Greatest request rate of these", _rate(plan.max_request_rate)),
        ("Their queue no longer drains at", _rate(plan.saturation_rate)),
        ("Gives way first", plan.binding_constraint),
        ("Seed", plan.seed),
    ]
    known = [(name, str(value)) for name, value in rows if value is not None]
    return _list(known) + _notes(plan.warnings)


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{number(value)}/s"


def facts(content: Content) -> str:
    """Profile, seed, notes and the whole scenario of every run; what all runs share is said once."""
    rows = {name: _facts_of(run) for name, run in content.runs.items()}
    if not rows:
        return _facts_of_lock(content.lock) if content.lock is not None else ""
    first = next(iter(rows.values()))
    shared = [row for row in first if all(row in others for others in rows.values())]
    parts = [_list(shared)]
    for name, run in content.runs.items():
        own = [row for row in rows[name] if row not in shared]
        parts += [
            f"<h3>{text(name)}</h3>" if len(rows) > 1 else "",
            _notes(run.summary.sim.warnings),
            _list(own) if own else "",
            _as_it_ran(run.lock_text),
        ]
    return "".join(parts)


def _facts_of_lock(lock: Lock) -> str:
    """What a plan stands on: no run was kept, so only what all its runs had in common."""
    profile = lock.profile
    size = lock.scenario.hardware.get("tensor_parallel_size")
    rows = [
        ("Model", lock.scenario.model),
        ("Profile", profile and profile.name),
        ("Engine it stands for", profile and profile.engine),
        ("Profile hash", profile and profile.hash),
        ("Servetwin", lock.servetwin),
        ("GPUs per replica", size),
        ("KV blocks per replica", None if lock.num_gpu_blocks is None else f"{lock.num_gpu_blocks:,}"),
        ("Longest sequence in tokens", None if lock.max_model_len is None else f"{lock.max_model_len:,}"),
    ]
    return _list([(name, str(value)) for name, value in rows if value is not None]) + _as_it_ran(lock.text)


def _as_it_ran(lock_text: str) -> str:
    return (
        f"<details><summary>Scenario as it ran</summary><pre><code>{text(lock_text)}</code></pre></details>"
    )


def definitions() -> str:
    """What the words of the page mean."""
    return (
        f"<details><summary>Definitions of the metrics</summary>{_list(list(DEFINITIONS.items()))}</details>"
    )


def _facts_of(run: Run) -> list[tuple[str, str]]:
    own = run.summary.sim
    rows = [
        ("Profile", own.profile.name),
        ("Engine it stands for", own.profile.engine),
        ("Profile hash", own.profile.hash),
        ("Servetwin", own.servetwin),
        ("Seed", own.seed),
        ("KV blocks per replica", f"{own.num_gpu_blocks:,}"),
        ("KV in use, mean and peak of a replica", _pair(own.kv_usage_mean, own.kv_usage_peak)),
        ("Replicas busy", None if own.busy_fraction is None else percent(own.busy_fraction)),
        ("Preemptions", f"{own.preemptions:,}"),
        (
            "Rejected",
            ", ".join(f"{count:,} {_spaced(reason)}" for reason, count in own.rejected.items()) or "none",
        ),
        ("Extrapolated terms", _extrapolated(own.extrapolated)),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _notes(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="note">{text(warning)}</p>' for warning in warnings)


def _extrapolated(terms: Mapping[str, Any]) -> str:
    if not terms:
        return "none: every cost lies within the measured range"
    return "; ".join(f"{term}: {message}" for term, message in terms.items())


def _pair(mean: float | None, peak: float | None) -> str | None:
    return None if mean is None or peak is None else f"{percent(mean)}, {percent(peak)}"


def _service(run: Run) -> str:
    own = run.summary.sim
    gpus = "" if own.gpus is None or own.gpus == own.replicas else f" ({own.gpus} GPUs)"
    return f"{replicas(own.replicas)}{gpus}"


def _load(run: Run) -> str:
    summary = run.summary
    requests = f"{summary.num_prompts:,} {'request' if summary.num_prompts == 1 else 'requests'}"
    if summary.max_concurrency is not None:
        return f"{requests}, at most {summary.max_concurrency} at once"
    rate = summary.request_rate
    return (
        f"{requests} at {number(rate)}/s"
        if isinstance(rate, int | float)
        else f"{requests} at their own times"
    )


def _setting(value: Any) -> str:  # noqa: ANN401  a mapping, a list or text
    if isinstance(value, dict):
        return ", ".join(f"{key} = {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _list(rows: list[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{text(name)}</dt><dd>{text(value)}</dd>' for name, value in rows)}</dl>"
