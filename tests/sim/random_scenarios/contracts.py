"""Contracts of two tenants at random: hard shares, or soft ones that lend and recall."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.sim.random_scenarios.policies import EVICTIONS, Draw, Raw, of, options


@st.composite
def contracts(draw: Draw, *, cached: bool) -> Raw:
    hard = draw(of([False, False, True]))
    both: Raw = {}
    for name in ("gold", "free"):
        tier: Raw = {"share": draw(of([0.5, 0.3]))}
        if draw(of([False, False, True])):
            tier["connections"] = draw(of([8, 3, 1]))
        if not hard and draw(of([True, True, False])):
            tier["burst"] = draw(of([2.0, 1.2]))
            tier |= draw(options(refill_blocks_per_s=of([200.0, 1000.0, 50.0, 1e6, 1.0])))
        if cached:
            tier |= draw(options(ttl_s=of([0.01, 0.05]), eviction=st.one_of(EVICTIONS)))
        both[name] = tier
    return {
        "isolation": "hard" if hard else "soft",
        "tiers": both,
        "tenants": {"small": "gold", "large": "free"},
    }
