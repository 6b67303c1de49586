"""Whole scenarios at random, section by section, mostly of what goes together and now and then of what does not."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from tests.sim.random_scenarios.contracts import contracts
from tests.sim.random_scenarios.links import links
from tests.sim.random_scenarios.policies import (
    ALLOCATORS,
    BATCHERS,
    CACHE_BATCHERS,
    CACHE_ROUTERS,
    COMPRESSIONS,
    EVICTIONS,
    PATTERNS,
    PREFETCHERS,
    ROUTERS,
    SESSION,
    TTL,
    Draw,
    Raw,
    of,
    options,
    policy,
)
from tests.sim.random_scenarios.tiers import tiers
from tests.sim.random_scenarios.workloads import TENANTS, workloads

MEMORIES = [
    *("plain", "cache", "cache", "tiers", "tiers", "tiers", "tiers"),
    *("pools", "pools", "access", "smaller", "allocator"),
]


@st.composite
def scenarios(draw: Draw, traces: Path) -> Raw:
    """Sections that go together; once in a while one that does not."""
    block_size = draw(of([4, 16, 16, 8]))
    seats = draw(of([4, 8, 3, 6, 8, 2, 1]))
    engine: Raw = {
        "block_size": block_size,
        "max_num_seqs": seats,
        "max_num_batched_tokens": draw(of([130, 50, 16, max(seats, 3)])),
        "num_gpu_blocks_override": draw(of([100, 130, 160, 200, 300, 80, 60])) // block_size + 2,
        **draw(options(async_scheduling=st.booleans(), max_model_len=of([200, 120, 60]))),
    }
    memory = draw(of(MEMORIES))
    workload = draw(workloads(traces, tiered=memory == "tiers"))
    policies: Raw = {}
    raw: Raw = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100_sxm"},
        "engine": engine,
        "policies": policies,
        "cluster": {
            "replicas": draw(of([1, 1, 2, 3])),
            **draw(options(signal_delay_ms=of([0.0, 1.0, 3.5]))),
        },
        "workload": workload,
        "slo": {"ttft_ms": 20.0},
        "seed": draw(st.integers(0, 3)),
    }
    cached = memory in ("cache", "tiers") or (memory == "pools" and draw(st.booleans()))
    if cached:
        engine["enable_prefix_caching"] = True
        engine["cache_at_start"] = draw(of(["cold", "cold", "warm"]))
    policies["batcher"] = draw(st.one_of(BATCHERS + CACHE_BATCHERS * 2 * cached))
    policies["router"] = draw(st.one_of(ROUTERS + CACHE_ROUTERS * 2 * cached))
    if memory == "pools":
        workload["tenants"] = TENANTS
        raw["qos"] = draw(contracts(cached=cached))
        engine["num_gpu_blocks_override"] *= 2
    elif memory == "cache":
        policies["eviction"] = draw(st.one_of([*EVICTIONS, TTL, TTL, policy("belady")]))
    elif memory == "tiers":
        policies["eviction"] = draw(st.one_of([*EVICTIONS, policy("belady")]))
        if draw(st.booleans()):
            policies["prefetch"] = draw(SESSION)
        raw["kv_tiers"] = draw(tiers(block_size))
    elif memory == "access":
        raw["kv_access"] = {
            "pattern": draw(st.one_of(PATTERNS)),
            **draw(options(resident=of([0.1, 0.3, 1.0]), layer_groups=of([1, 2, 4]))),
        }
        policies["prefetch"] = draw(st.one_of(PREFETCHERS))
    elif memory == "smaller":
        raw["kv_compression"] = draw(st.one_of(COMPRESSIONS))
    elif memory == "allocator":
        policies["allocator"] = draw(st.one_of(ALLOCATORS))
    if draw(of([False] * 5 + [True])):
        _spoil(draw, raw, block_size)
    raw["links"] = draw(links(raw, block_size))
    return raw


def _spoil(draw: Draw, raw: Raw, block_size: int) -> None:
    """Add something without a look at whether it fits."""
    what = draw(
        of(["cache", "allocator", "batcher", "router", "eviction", "smaller", "tiers", "prefetch", "qos"])
    )
    if what == "cache":
        raw["engine"]["enable_prefix_caching"] = True
    elif what == "smaller":
        raw["kv_compression"] = draw(st.one_of(COMPRESSIONS))
    elif what == "tiers":
        raw["kv_tiers"] = draw(tiers(block_size))
    elif what == "qos":
        raw["workload"]["tenants"] = TENANTS
        raw["qos"] = draw(contracts(cached=draw(st.booleans())))
    else:
        choices = {
            "allocator": ALLOCATORS,
            "batcher": CACHE_BATCHERS,
            "router": CACHE_ROUTERS,
            "eviction": [*EVICTIONS, TTL],
            "prefetch": [*PREFETCHERS, SESSION],
        }
        raw["policies"][what] = draw(st.one_of(choices[what]))
