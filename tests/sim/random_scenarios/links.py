"""Links at random: bandwidths at which a block takes about a millisecond, and what others send beside it."""

from __future__ import annotations

from hypothesis import strategies as st

from sim.links.machine import ROUTES
from tests.sim.random_scenarios.policies import BLOCK_BYTES_PER_TOKEN, Draw, Raw, of, options


@st.composite
def links(draw: Draw, raw: Raw, block_size: int) -> Raw:
    """Bandwidths at which a block takes about a millisecond, or hardly any time; what others send beside it."""
    a_block_a_ms = block_size * BLOCK_BYTES_PER_TOKEN * 1000 / 1e9
    tiers = raw.get("kv_tiers", {})
    routes = set()
    if tiers:
        routes |= {"offload"} | ({"load"} if tiers.get("reload") != "never" else set())
    if "disk_gib" in tiers:
        routes |= {"disk_store", "disk_load"}
    if "kv_access" in raw:
        routes.add("load")
    if raw["policies"].get("allocator", {}).get("name") == "grow":
        routes.add("copy")
    section: Raw = {}
    if routes:
        section |= draw(options(latency_us=of([0.0, 10.0, 1000.0])))
    if draw(of([False, False, True])):
        section["background"] = [draw(background(raw, a_block_a_ms)) for _ in range(draw(st.integers(1, 2)))]
        routes |= {flow["route"] for flow in section["background"]}
    used = {link for route in routes for link in ROUTES[route]}
    for link in sorted(used & {"pcie_h2d", "pcie_d2h", "disk"}):
        if link == "disk" or draw(st.booleans()):
            section[link] = a_block_a_ms * draw(of([0.5, 1.0, 1.0, 10.0]))
    if "hbm" in used and draw(of([False, True])):
        section["hbm"] = a_block_a_ms * draw(of([2.0, 20.0]))
    return section


@st.composite
def background(draw: Draw, raw: Raw, a_block_a_ms: float) -> Raw:
    flow: Raw = {
        "route": draw(of(["load", "offload", "copy", "load", "disk_load", "nvlink_send"])),
        "gb_per_s": a_block_a_ms * draw(of([0.1, 0.5])),
        "duration_s": draw(of([0.001, 0.0045, 0.02])),
        **draw(options(start_s=of([0.001, 0.01]), owner=of(["neighbour", "checkpoint"]))),
    }
    if draw(st.booleans()):
        flow["every_s"] = flow["duration_s"] + draw(of([0.0, 0.001, 0.007]))
    if draw(st.booleans()):
        flow["replica"] = draw(st.integers(0, raw["cluster"]["replicas"] - 1))
    return flow
