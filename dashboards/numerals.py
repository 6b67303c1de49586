"""Numbers as people read them."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """A number as people read it: at least three digits, never more than they can use."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or size == 0 else f"{value:.2g}"


def percent(share: float) -> str:
    """A share; 100% only where it is all, 0% only where it is nothing."""
    if share in (0, 1):
        return f"{share:.0%}"
    shown = f"{share:.1%}"
    return {"100.0%": "more than 99.9%", "0.0%": "less than 0.1%"}.get(shown, shown)


def limit(value: float) -> str:
    """A number that somebody set, as it was set."""
    return f"{value:,.10g}"
