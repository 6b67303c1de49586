"""Lower tiers of KV at random: of a few blocks, or of more than is ever written."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.sim.random_scenarios.policies import BLOCK_BYTES_PER_TOKEN, EVICTIONS, TTL, Draw, Raw, of, options


@st.composite
def tiers(draw: Draw, block_size: int) -> Raw:
    block_gib = block_size * BLOCK_BYTES_PER_TOKEN / 2**30
    section = {
        "host_gib": draw(of([200, 30, 12, 4, 1])) * block_gib,
        "write": draw(of(["through", "back"])),
        "reload": draw(of(["always", "cheaper"])),
        "preempt": draw(of(["swap", "recompute", "cheaper"])),
        **draw(options(eviction=st.one_of([*EVICTIONS, TTL]))),
    }
    if draw(of([False, True])):
        section["disk_gib"] = draw(of([3, 40])) * block_gib
    if draw(of([False] * 7 + [True])):
        section |= {"reload": "never", "preempt": "recompute"}
    return section
