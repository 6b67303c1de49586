"""Tenants and tiers of service, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def tenant_table(own: Mapping[str, Any]) -> Table:
    """One row a tenant; `own` is the part `sim` of a summary."""
    from rich.table import Table  # noqa: PLC0415

    tiers = "tiers" in own
    table = Table("tenant", *(["tier"] if tiers else []), box=None, header_style="dim")
    for title in ("done", "refused", "TTFT p50", "p99", "TPOT p50", "p99", "preempted"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, tenant in own["tenants"].items():
        latencies = (
            tenant[key] for key in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")
        )
        table.add_row(
            name,
            *([tenant["tier"]] if tiers else []),
            f"{tenant['completed']}",
            f"{tenant['failed']}",
            *("-" if value is None else f"{value:.1f}" for value in latencies),
            f"{tenant['preemptions']}",
        )
    return table


def tier_lines(own: Mapping[str, Any]) -> list[str]:
    """One line a tier of `qos`."""
    return [
        f"tier {name}: {tier['kv_blocks_mean']:.0f} KV blocks of a replica held on average, {tier['kv_blocks_peak']} "
        f"at most, {tier['guaranteed_blocks']} promised"
        for name, tier in own.get("tiers", {}).items()
    ]
