"""The KV memory system all together: whatever of it is on, in whatever combination, the laws hold.

Whole scenarios are drawn, section by section, mostly of what goes together and now and then of what does not. One that
is refused must be refused in one line. Of all others: fast-forward is exact, requests and tokens are conserved, stages
sum to latencies, the pool is never exceeded, nothing happens before its cause, and a run repeats itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.core import EngineCore
from sim.engine.records import Status
from sim.links.machine import ROUTES
from sim.run_directory import json_text, request_columns, timeline_columns
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.service import Service, build_service
from sim.simulation import Result, build_load, simulate
from tests.sim.doubles import AffineCost
from workloads.build import Workload
from workloads.errors import ConfigError

Raw = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

BLOCK_BYTES_PER_TOKEN = 1 << 17
"""Of llama-3.1-8b in 16 bits."""


@dataclass(frozen=True)
class Cost(AffineCost):
    """Prices in whole milliseconds or so: ends of steps, arrivals and transfers meet at one instant."""

    extrapolated: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


COSTS = st.one_of(
    st.none(),  # the compiled one
    st.builds(
        Cost,
        base_ns=st.sampled_from([1_000_000, 1_000_000, 500_000, 400_000]),
        per_seq_ns=st.sampled_from([0, 0, 100_000, 7]),
        per_context_ns=st.sampled_from([0, 0, 0, 1000]),
        per_window_ns=st.sampled_from([0, 0, 500]),
        per_prefill_token_ns=st.sampled_from([0, 0, 10_000, 100_000]),
        per_prefill_context_ns=st.sampled_from([0, 1000]),
        sliding_window=st.sampled_from([None, None, None, 24]),
        step_bytes=st.sampled_from([0, 1 << 20, 1 << 24]),
        bytes_per_context=st.sampled_from([0, 1 << 15]),
        compute_s=st.sampled_from([0.0, 1e-3]),
        hbm_bytes_per_s=st.sampled_from([1e10, 3e12]),
    ),
)
"""None where the scenario's own is to be compiled."""


# Drawing scenarios.


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
CONTEXTS = [
    policy("full"),
    policy("summary", keep_turns=st.integers(0, 2), summary_request=st.booleans()).flatmap(
        lambda raw: of([{**raw, "summarise_every": 2}, {**raw, "context_tokens": 60}])
    ),
    of([1, 2]).map(lambda turns: {"name": "sliding_window", "window_turns": turns}),
    of([10, 50]).map(lambda tokens: {"name": "sliding_window", "window_tokens": tokens}),
]
LENGTHS = {
    "input_tokens": of([16, 33, {"uniform": [1, 30]}, {"uniform": [1, 90]}]),
    "output_tokens": of([20, 40, {"uniform": [1, 12]}, {"uniform": [1, 50]}, {"uniform": [20, 60]}, 1]),
}
TURNS = {  # shorter, since prompts grow
    "input_tokens": of([9, 16, {"uniform": [1, 20]}, {"uniform": [1, 60]}]),
    "output_tokens": of([20, 12, {"uniform": [1, 12]}, {"uniform": [8, 30]}, 1]),
}
MEMORIES = [
    *("plain", "cache", "cache", "tiers", "tiers", "tiers", "tiers"),
    *("pools", "pools", "access", "smaller", "allocator"),
]
TENANTS = {"small": {"weight": 1, "priority": -1}, "large": {"weight": 2}}


@st.composite
def workloads(draw: Draw, traces: Path, *, tiered: bool) -> Raw:
    """Few requests, near each other: a step takes a millisecond or so."""
    kinds = ["lengths", "sessions", "sessions", "trace"]
    kind = draw(of(kinds + ["sessions"] * 4 * tiered))
    section: Raw = {}
    if kind == "trace":
        section["trace"] = draw(trace_files(traces))
    else:
        laws = TURNS if kind == "sessions" else LENGTHS
        section |= {name: draw(law) for name, law in laws.items()}
        section["num_requests"] = draw(of([24, 32, 16, 24, 32, 9, 3]))
    timing = draw(of(["constant", "poisson", "closed"]))
    if kind == "trace" and timing != "closed":
        timing = draw(of(["own", "own", timing]))
    if timing == "closed":
        section["max_concurrency"] = draw(of([8, 16, 12, 4, 1]))
    elif timing != "own":
        section["request_rate"] = draw(of([1000.0, 1000.0, 500.0, 200.0, 50.0]))
        if timing == "constant":
            section["burstiness"] = "inf"
    if kind == "sessions":
        section["sessions"] = draw(sessions(closed=timing == "closed"))
    if draw(of([False, False, True])):
        section["tenants"] = TENANTS
    return section


@st.composite
def sessions(draw: Draw, *, closed: bool) -> Raw:
    section = draw(
        options(
            turns=of([3, 5, {"uniform": [1, 5]}, 1]),
            turn_gap_burstiness=of([1.0, 1e9]),
            context_policy=st.one_of(CONTEXTS),
            system_prompt_tokens=of([0, 16, 40]),
            system_prompts=st.integers(1, 3),
            max_input_tokens=of([100, 140]),
            block_tokens=of([4, 8, 16, 32]),
        )
    )
    section["turn_gap_s"] = draw(of([0.005, 0.001, 0.03, 0.03]))
    if not closed and draw(st.booleans()):
        section["waits_for_answer"] = False
    return section


@st.composite
def trace_files(draw: Draw, traces: Path) -> str:
    """Chats as Bailian records them, in blocks of 16 tokens that start with one of a few prefixes."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 40),  # ms
                st.integers(1, 100),
                st.integers(1, 40),
                st.lists(st.integers(0, 2), max_size=3),  # the way through a tree of shared blocks
                st.booleans(),  # whether it follows the row before
            ),
            min_size=1,
            max_size=16,
        ).map(lambda drawn: sorted(drawn, key=lambda row: row[0]))
    )
    lines = []
    for number, (at, inputs, outputs, way, follows) in enumerate(rows):
        blocks = -(-inputs // 16)
        shared = [
            int("1" + "".join(map(str, way[: depth + 1]))) for depth in range(min(len(way), inputs // 16))
        ]
        own = [10_000 + 100 * number + depth for depth in range(len(shared), blocks)]
        parent = number - 1 if follows and number else -1
        row = {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": at / 1000,
            "input_length": inputs,
            "output_length": outputs,
            "hash_ids": shared + own,
        }
        lines.append(json.dumps(row))
    text = "\n".join(lines) + "\n"
    path = traces / f"{crc32(text.encode())}.jsonl"
    path.write_text(text)
    return str(path)


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


# Running them.


@lru_cache(maxsize=256)
def _built(parts: str) -> Service:
    engine, compression = json.loads(parts)
    return build_service(
        load_scenario(
            {
                "model": "llama-3.1-8b",
                "hardware": {"gpu": "h100_sxm"},
                "engine": engine,
                "kv_compression": compression,
                "workload": {"input_tokens": 1, "output_tokens": 1, "max_concurrency": 1, "num_requests": 1},
            }
        )
    )


def service_of(scenario: Scenario, cost: Cost | None) -> Service:
    """A service of its own for each run where a cost is compiled: it remembers what it was asked."""
    if cost is None:
        return build_service(scenario)
    engine = scenario.engine.model_dump(mode="json", exclude={"enable_prefix_caching", "cache_at_start"})
    parts = json.dumps([engine, scenario.kv_compression.model_dump(mode="json")])
    return replace(_built(parts), cost=cost)


@contextmanager
def checked_engines() -> Iterator[None]:
    """Engines that look at their own books at both ends of every step."""
    commit = EngineCore.commit

    def checked(core: EngineCore, *args: Any) -> Any:
        core.check_integrity()
        done = commit(core, *args)
        core.check_integrity()
        assert 0 <= core.allocator.used_blocks <= core.num_blocks
        return done

    with patch.object(EngineCore, "commit", checked):
        yield


def outcome(raw: Raw, cost: Cost | None, *, fast_forward: bool) -> tuple[Result, Workload]:
    scenario = load_scenario({**raw, "simulation": {"fast_forward": fast_forward}})
    workload = build_load(scenario)
    return simulate(scenario, service_of(scenario, cost), workload), workload


def assert_same(one: Result, other: Result, load: Workload) -> None:
    """Bit for bit: columns of requests, steps, links and pages, accounts, summary, and what files are made of."""
    _same_columns(one.requests.columns, other.requests.columns)
    for log, twin in zip(one.replicas, other.replicas, strict=True):
        _same_columns(vars(log), vars(twin))
    for mine, its in ((one.links, other.links), (one.paging, other.paging)):
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            _same_columns(mine.columns, its.columns)
    if one.paging is not None and other.paging is not None:
        for steps, others in zip(one.paging.steps, other.paging.steps, strict=True):
            assert np.array_equal(steps, others)
    _same_columns(timeline_columns(one), timeline_columns(other))
    _same_columns(request_columns(one.requests, load.trace), request_columns(other.requests, load.trace))
    assert json_text({**one.summary, "date": ""}) == json_text({**other.summary, "date": ""})


def _same_columns(columns: Any, others: Any) -> None:
    assert columns.keys() == others.keys()
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            assert column.dtype == others[name].dtype, name
            assert np.array_equal(column, others[name], equal_nan=column.dtype.kind == "f"), name
        else:
            assert column == others[name], name


# Laws.


def check_laws(result: Result, load: Workload) -> None:
    requests, trace = result.requests, load.trace
    columns, done = requests.columns, requests.completed
    assert set(columns["status"].tolist()) <= set(Status)  # each is done or refused, and says so once
    assert result.summary["completed"] + result.summary["failed"] == len(trace)
    assert (columns["arrival_ns"] >= trace.arrival_ns).all()
    if trace.turns is not None:
        follows = np.flatnonzero(trace.turns.predecessor >= 0)
        before = trace.turns.predecessor[follows]
        ready = np.maximum(columns["last_token_ns"][before], columns["arrival_ns"][before])
        assert np.array_equal(columns["arrival_ns"][follows], ready + trace.turns.think_ns[follows])
    stages = requests.stages_ns
    assert all((values >= 0).all() for values in stages.values())
    assert np.array_equal(sum(stages.values()), requests.e2el_ns)
    assert (columns["cached_tokens"][done] < columns["input_tokens"][done]).all()
    _check_tokens(result)
    for index, log in enumerate(result.replicas):
        _check_steps(result, index)
        usable = result.service.capacity.usable_blocks
        for used in (log.first_used_blocks, log.last_used_blocks):
            assert ((used >= 0) & (used <= usable)).all()
        assert (log.running <= result.service.limits.max_num_seqs).all()
    own = result.summary["sim"]
    if "links" in own:
        assert all(0 <= use["utilization"] <= 1 + 1e-6 for name, use in own["links"].items() if name != "hbm")
    if "kv_tiers" in own:
        block_gib = result.service.capacity.block_bytes / 2**30
        most = own["kv_tiers"]["host_blocks"] * block_gib
        assert own["kv_tiers"]["host_used_gib_peak"] <= most * (1 + 1e-9)
    if load.max_concurrency is not None and trace.turns is None:
        assert result.summary["max_concurrent_requests"] <= load.max_concurrency


def _check_tokens(result: Result) -> None:
    """Every token was sampled in one step, and what was computed is what was asked for and not found."""
    requests, logs = result.requests, result.replicas
    sampled = sum(int(log.decodes @ log.steps) + log.resumed_ns.size for log in logs) + int(
        requests.completed.sum()
    )
    assert sampled == requests.output_tokens.sum()
    computed = sum(int(log.prefill_tokens.sum()) for log in logs)
    if result.scenario.engine.enable_prefix_caching:
        asked = sum(log.prefix_queries - log.prefix_hits for log in logs)
        assert computed <= asked
        if not result.summary["sim"]["preemptions"]:
            assert computed == asked
    elif not result.summary["sim"]["preemptions"]:
        assert computed == requests.input_tokens.sum()
    else:
        assert computed >= requests.input_tokens.sum()


def _check_steps(result: Result, index: int) -> None:
    """Steps of a replica follow each other, and each request that ran there ended with one of them."""
    log, requests = result.replicas[index], result.requests
    assert (log.step_ns > 0).all()
    ends = log.step_ends_ns()
    assert (np.diff(ends) >= log.step_ns[1:]).all()
    here = requests.completed & (requests.columns["replica"] == index)
    for name in ("first_token_ns", "last_token_ns"):
        assert np.isin(requests.columns[name][here], ends).all()
    assert (requests.columns["scheduled_ns"][here] >= requests.columns["arrival_ns"][here]).all()


# The property.


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def check(raw: Raw, cost: Cost | None, fast: Result, load: Workload) -> None:
    """Everything that holds of a scenario, of which one run is given."""
    with checked_engines():
        slow, _ = outcome(raw, cost, fast_forward=False)
    assert_same(fast, slow, load)
    check_laws(fast, load)
    again, _ = outcome(raw, cost, fast_forward=True)
    assert_same(fast, again, load)


def test_fast_forward_is_exact_and_laws_hold_whatever_is_on(traces: Path) -> None:
    ran = 0
    refusals: list[str] = []

    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data(), cost=COSTS)
    def holds(data: st.DataObject, cost: Cost | None) -> None:
        nonlocal ran
        raw = data.draw(scenarios(traces))
        try:
            fast, load = outcome(raw, cost, fast_forward=True)
        except ConfigError as error:
            refusals.append(str(error))
            return
        ran += 1
        check(raw, cost, fast, load)

    holds()
    assert ran >= len(refusals)
    assert not [text for text in refusals if "\n" in text]


FOUND = {
    # What had expired was forgotten at the next look-up, and a blocked queue looks once a step, or once a window: what
    # an answer left behind in between was taken for something that is there already.
    "blocks that expire while nobody looks": (
        {
            "engine": {"num_gpu_blocks_override": 8, "enable_prefix_caching": True},
            "policies": {"eviction": {"name": "ttl", "ttl_s": 0.02}},
            "workload": {
                "input_tokens": 13,
                "output_tokens": 20,
                "num_requests": 7,
                "request_rate": 200.0,
                "burstiness": "inf",  # which no summary could say
                "sessions": {"turn_gap_s": 0.005, "waits_for_answer": False},
            },
        },
        Cost(base_ns=1_000_000, per_seq_ns=100_000),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_holds(name: str) -> None:
    sections, cost = FOUND[name]
    raw = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100_sxm"}, **sections}
    check(raw, cost, *outcome(raw, cost, fast_forward=True))
