"""Policies of a scenario at random: a name, and each option or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Raw = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

BLOCK_BYTES_PER_TOKEN = 1 << 17
"""Of llama-3.1-8b in 16 bits."""


def options(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Raw]:
    """A mapping in which each key may be missing."""
    return st.fixed_dictionaries({}, optional=strategies)


def policy(name: str, /, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Raw]:
    return st.fixed_dictionaries({"name": st.just(name)}, optional=strategies)


of = st.sampled_from
lookahead = {"lookahead": st.integers(1, 6), "max_overtaken": st.integers(0, 4)}
BATCHERS = [
    policy("chunked"),
    policy("chunked", chunk_tokens=of([1, 7, 16, 40])),
    policy("continuous"),
    policy(
        "dynamic_chunked",
        target_tpot_ms=of([0.5, 2.0, 8.0]),
        min_chunk_tokens=st.integers(1, 16),
        kv_headroom=of([0.0, 0.3]),
        urgent_factor=of([1.0, 3.0]),
    ),
    policy(
        "length_grouped",
        groups=st.integers(1, 4),
        history=st.integers(1, 12),
        budget=of(["kv_pool", "l2", 60, 200]),
        **lookahead,
    ),
    policy(
        "static_batch", batch_size=st.integers(1, 6), max_wait_ms=of([0.0, 2.0, 5.5]), padding=st.booleans()
    ),
    st.builds(
        lambda raw: {**raw, "group_by": "length"},
        policy(
            "static_batch",
            batch_size=st.integers(1, 6),
            max_wait_ms=of([0.0, 3.0]),
            padding=st.booleans(),
            lookahead=st.integers(1, 6),
        ),
    ),
]
CACHE_BATCHERS = [
    policy("prefix_first", **lookahead),
    st.builds(
        lambda raw: {**raw, "group_by": "prefix"},
        policy("static_batch", batch_size=st.integers(1, 6), padding=st.booleans(), **lookahead),
    ),
]
ROUTERS = [
    policy("least_loaded"),
    policy("power_of_two"),
    policy("round_robin"),
    policy("session_affinity", max_imbalance=st.integers(0, 3)),
]
CACHE_ROUTERS = [
    policy("prefix_affinity", max_imbalance=st.integers(0, 3), remember_blocks=st.integers(1, 40)),
    st.builds(
        lambda raw: {**raw, "signal": "cached"}, policy("prefix_affinity", max_imbalance=st.integers(0, 3))
    ),
]
ALLOCATORS = [
    policy(
        "contiguous",
        reserve=of(["max", "exact", "power_of_two"]),
        placement=of(["first_fit", "best_fit", "buddy"]),
    ),
    policy(
        "arena",
        reserve=of(["max", "exact", "power_of_two"]),
        placement=of(["first_fit", "best_fit"]),
        alignment_tokens=of([1, 16, 48]),
    ),
    policy("grow", step_tokens=of([1, 16, 40]), placement=of(["first_fit", "best_fit"])),
    st.builds(
        lambda raw: {**raw, "bounds_tokens": [8, 40, 400]},
        st.fixed_dictionaries(
            {"name": st.just("size_class"), "shares": of([[0.3, 0.7], [0.5, 0.5]])},
            optional={
                "window_s": of([0.003, 0.02]),
                "min_hit_rate": of([0.5, 1.0]),
                "windows": st.integers(1, 2),
            },
        ),
    ),
]
EVICTIONS = [
    policy("lru"),
    policy("lfu"),
    policy("lfu_perfect"),
    policy("fifo"),
    policy("length_aware"),
    policy("lru_lfu", half_life=of([0.5, 2.0])),
]
TTL = st.fixed_dictionaries(
    {"name": st.just("ttl"), "ttl_s": of([0.004, 0.02, 0.1])},
    optional={"since": of(["last_use", "insertion"])},
)
PATTERNS = [
    policy("full"),
    policy(
        "sliding_window",
        window_tokens=of([1, 20, 64]),
        sink_tokens=of([0, 4, 40]),
        full_groups=of([[], [0], [0, 1]]),
    ),
    policy(
        "top_k",
        fraction=of([0.1, 0.5]),
        churn=of([0.0, 0.2]),
        near_tokens=of([1, 32]),
        sink_tokens=of([0, 20]),
    ),
    policy(
        "top_k", blocks=st.integers(0, 4), locality_blocks=st.integers(1, 3), zipf_exponent=of([0.0, 1.5])
    ),
]
PREFETCHERS = [
    policy("none"),
    policy("stride", depth=st.integers(1, 4)),
    policy(
        "attention_weighted",
        top=st.integers(1, 5),
        second_level_weight=of([0.0, 0.2]),
        depth=st.integers(0, 2),
    ),
    policy("scheduled"),
    policy("oracle", depth=st.integers(1, 3)),
]
SESSION = policy(
    "session", expected_gap_s=of([0.03, 0.005, 0.2]), lead_s=of([0.005, 0.0, 1.0]), share=of([0.25, 1.0])
)
COMPRESSIONS = [
    options(owning_layers=of([0.5, 1.0]), layer_keep=of([{"low": 0.75}, {"middle": 0.5, "high": 0.25}])),
    st.fixed_dictionaries(
        {"hot_tokens": of([1, 20, 64])},
        optional={
            "cold_dtype": of(["fp8", "int8"]),
            "keep_ratio": of([0.3, 0.6]),
            "owning_layers": of([0.5]),
        },
    ),
    st.fixed_dictionaries({"keep_ratio": of([0.3, 0.6])}, optional={"keep_recent": of([0, 10, 50])}),
    st.fixed_dictionaries({"sliding_window": of([8, 33, 64])}, optional={"layer_keep": of([{"high": 0.5}])}),
]
