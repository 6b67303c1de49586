"""Tables of the memory section: tenants, tiers, and what was assumed of quality where KV shrinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboards.content import Content
from dashboards.numerals import number, percent
from dashboards.tables import facts_table


def tenants(content: Content) -> str:
    """What each tenant got, a table a run."""
    return "".join(
        facts_table(
            f"Tenants{_of(name, content)}",
            {
                tenant: {_words(key): _shown(key, v) for key, v in facts.items()}
                for tenant, facts in found.items()
            },
        )
        for name, run in content.runs.items()
        if (found := run.summary.sim.tenants)
    )


def tiers(content: Content) -> str:
    """What came from which tier and moved between them, a column a run."""
    return _side_by_side("KV tiers", {name: run.summary.sim.kv_tiers for name, run in content.runs.items()})


def compression(content: Content) -> str:
    """Assumptions about quality, as the scenario states them: no run computes any."""
    return _side_by_side(
        "Smaller KV: what the scenario asserts of quality, not a result",
        {
            name: (run.summary.sim.kv_compression or {}).get("assumptions")
            for name, run in content.runs.items()
        },
    )


def _side_by_side(caption: str, found: Mapping[str, Mapping[str, Any] | None]) -> str:
    known = {name: _flat(facts) for name, facts in found.items() if facts}
    keys = dict.fromkeys(key for facts in known.values() for key in facts)
    if not keys:
        return ""
    return facts_table(
        caption,
        {
            _words(key): {
                name: _shown(key, facts[key]) if key in facts else "-" for name, facts in known.items()
            }
            for key in keys
        },
    )


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Facts of facts under one name each."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key} ")
        else:
            flat[prefix + key] = value
    return flat


def _of(name: str, content: Content) -> str:
    return f": {name}" if len(content.runs) > 1 else ""


def _words(key: str) -> str:
    return key.replace("_", " ")


def _shown(key: str, value: object) -> str:
    """A fact as people read it, by what its name says of it."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        share = key.endswith(("_share", "_rate")) and 0 <= value <= 1
        return percent(value) if share else number(value)
    return str(value)
