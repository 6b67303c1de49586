"""No option is accepted and ignored: each field of a scenario changes the outcome, or the test names why it may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from sim.profile import load_profile
from sim.scenario.kv_tiers import KvTiersConfig
from sim.scenario.links import LinksConfig
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.simulation import simulate
from workloads.errors import ConfigError

# Tight on purpose: prompts need several chunks, KV blocks run short, some requests are too long.
BASE = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100_sxm"},
    "engine": {
        "max_num_seqs": 12,
        "max_num_batched_tokens": 512,
        "max_model_len": 1500,
        "num_gpu_blocks_override": 260,
    },
    "cluster": {"replicas": 2},
    "workload": {
        "input_tokens": {"uniform": [20, 1400]},
        "output_tokens": {"uniform": [1, 200]},
        "request_rate": 60,
        "num_requests": 60,
    },
    "slo": {"ttft_ms": 400, "tpot_ms": 20, "e2el_ms": 1500},
}
COMPRESSION = {
    "hot_tokens": [64],
    "cold_dtype": None,  # tested below, beside hot_tokens
    "owning_layers": None,  # tested below: an override of the blocks wins over it, as over the memory share
    "layer_keep": [{"low": 0.753}, {"middle": 0.5}, {"high": 0.427}],
    "keep_ratio": [0.6],
    "keep_recent": None,  # tested below, beside keep_ratio
    "sliding_window": [256],
    "quality": None,  # repeated, never computed: tests/sim/test_kv_compression.py
}
OTHER_VALUES = {
    "model": ["qwen3-8b"],
    "hardware.gpu": ["h200_sxm"],
    "hardware.profile": None,  # tested below
    "hardware.tensor_parallel_size": [2],
    "hardware.weight_dtype": ["fp8"],
    "engine.max_num_seqs": [3],
    "engine.max_num_batched_tokens": [100],
    "engine.max_model_len": [900],
    "engine.async_scheduling": [False],
    "engine.block_size": [32],
    "engine.gpu_memory_utilization": None,  # tested below: an override wins over it
    "engine.num_gpu_blocks_override": [150],
    "engine.kv_cache_dtype": ["fp8"],
    "engine.enforce_eager": [True],
    "engine.cudagraph_mode": ["full_decode_only", "none"],
    "engine.cudagraph_capture_sizes": [[1, 64]],
    "engine.enable_prefix_caching": None,  # tested below, on a load with prefixes
    "engine.cache_at_start": None,
    **{f"kv_compression.{name}": values for name, values in COMPRESSION.items()},
    # Tiers act on a prefix cache that is short of blocks: tests/sim/test_kv_tiers.py.
    **dict.fromkeys(f"kv_tiers.{name}" for name in KvTiersConfig.model_fields),
    "kv_access.pattern": ["full", "sliding_window", "top_k"],
    # What acts beside a pattern: tests/sim/test_paged_steps.py.
    "kv_access.resident": None,
    "kv_access.resident_gib": None,
    "kv_access.layer_groups": None,
    "cluster.replicas": [1],
    "cluster.signal_delay_ms": [500],
    "cluster.price_per_gpu_hour": None,  # a price changes costs, which a run does not have: see tests of plan
    "policies.router": ["round_robin", "power_of_two"],
    "policies.batcher": ["continuous", "static_batch", {"name": "dynamic_chunked", "target_tpot_ms": 8}],
    "policies.allocator": [
        {"name": "contiguous", "reserve": "exact"},
        {"name": "arena", "reserve": "exact"},
        {"name": "size_class", "bounds_tokens": [16, 128, 512, 2048]},
        "grow",
    ],
    "policies.eviction": None,  # tested below, on a load with prefixes
    "policies.prefetch": None,  # it acts where KV is in host memory: tests/sim/test_paged_steps.py
    # Bandwidths and latency act on transfers: tests/sim/test_link_scenarios.py.
    **dict.fromkeys(f"links.{name}" for name in LinksConfig.model_fields),
    "links.background": [[{"route": "load", "gb_per_s": 60, "duration_s": 1}]],
    "qos": None,  # tests/sim/qos/test_scenario.py
    "workload": None,  # every field of a workload: tests/workloads
    "slo.ttft_ms": [1],
    "slo.tpot_ms": [1],
    "slo.e2el_ms": [1],
    "simulation.fast_forward": None,  # must change nothing: test_fast_forward.py
    "seed": [1],
}
POLICY_OPTIONS = {
    "batcher": {
        "chunked": {"chunk_tokens": 64},
        "static_batch": {
            "batch_size": 2,
            "max_wait_ms": 50.0,
            "padding": True,
            "group_by": "length",
            "lookahead": None,  # these two act beside group_by: tested below
            "max_overtaken": None,
        },
        "length_grouped": {
            "groups": 2,
            "history": 5,
            "budget": 2000,
            "kv_share": 0.3,
            "lookahead": 3,
            "max_overtaken": 1,
        },
        "prefix_first": {"lookahead": None, "max_overtaken": None},  # tested below, on a load with prefixes
        "dynamic_chunked": {
            "target_tpot_ms": 12.0,
            "min_chunk_tokens": 400,
            "kv_headroom": 0.6,
            "urgent_factor": None,  # needs priorities: tests/sim/batching/test_dynamic_chunked.py
        },
        "continuous": {},
    },
    "router": {
        **{name: {} for name in ("least_loaded", "power_of_two", "round_robin")},
        # These act on sessions and their prefixes: tested below.
        "prefix_affinity": {"max_imbalance": None, "signal": None, "remember_blocks": None},
        "session_affinity": {"max_imbalance": None},
    },
    "allocator": {
        "paged": {},
        "contiguous": {"reserve": "exact", "placement": "buddy"},
        "arena": {"reserve": "power_of_two", "placement": "best_fit", "alignment_tokens": 512},
        "size_class": {
            "bounds_tokens": [16, 300, 2048],
            "shares": [0.2, 0.8],
            "window_s": 0.5,
            "min_hit_rate": 0.0,
            "windows": 1,
        },
        "grow": {"step_tokens": 16, "placement": "best_fit"},
    },
    "prefetch": {  # acts where KV is in host memory: tests/sim/test_paged_steps.py
        "none": {},
        "stride": {"depth": None},
        "attention_weighted": {"top": None, "second_level_weight": None, "depth": None},
        "scheduled": {},
        "oracle": {"depth": None},
        "session": dict.fromkeys(("expected_gap_s", "lead_s", "share")),  # tests/sim/test_kv_tiers.py
    },
    "eviction": {
        **{name: {} for name in ("lru", "lfu", "lfu_perfect", "fifo", "length_aware", "belady")},
        # Options of caches act on caches: tests/sim/kv.
        "lru_lfu": {"half_life": None},
        "ttl": {"ttl_s": None, "since": None},
    },
}
# Options without which others of the same policy would not act on a short run.
NEEDED_OPTIONS = {
    "dynamic_chunked": {"target_tpot_ms": 8},
    "arena": {"reserve": "exact", "alignment_tokens": 16},
    "size_class": {"bounds_tokens": [16, 128, 2048], "shares": [0.4, 0.6], "window_s": 0.2, "windows": 2},
}


def fields_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    paths = []
    for name, info in model.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, BaseModel) and name != "workload":
            paths += fields_of(section, f"{prefix}{name}.")
        else:
            paths.append(prefix + name)
    return paths


def outcome(*overrides: str, raw: dict | None = None) -> str:
    result = simulate(load_scenario(raw or BASE, overrides))
    summary = {k: v for k, v in result.summary.items() if k not in ("date", "model_id")}
    summary["sim"] = {
        k: v
        for k, v in summary["sim"].items()
        if k not in ("seed", "profile", "num_gpu_blocks", "kv_compression", "warnings")
    }
    return json.dumps([summary, {k: v.tolist() for k, v in result.requests.columns.items()}])


def test_the_table_is_complete():
    assert sorted(OTHER_VALUES) == sorted(fields_of(Scenario))


@pytest.mark.parametrize(
    ("path", "value"),
    [(path, value) for path, values in OTHER_VALUES.items() if isinstance(values, list) for value in values],
)
def test_another_value_gives_another_outcome(path, value):
    assert outcome(f"{path}={json.dumps(value)}") != outcome()


@pytest.mark.parametrize(
    ("kind", "name", "option", "value"),
    [
        (kind, name, option, value)
        for kind, policies in POLICY_OPTIONS.items()
        for name, options in policies.items()
        for option, value in options.items()
        if value is not None
    ],
)
def test_every_option_of_every_policy_acts(kind, name, option, value):
    base = f"policies.{kind}={json.dumps({'name': name, **NEEDED_OPTIONS.get(name, {})})}"
    assert outcome(base) != outcome(base, f"policies.{kind}.{option}={value}")


def test_the_policy_table_is_complete():
    sections = Scenario.model_fields["policies"].annotation.model_fields
    for kind, policies in POLICY_OPTIONS.items():
        union = sections[kind].annotation.__args__
        known = {m.model_fields["name"].default: set(m.model_fields) - {"name"} for m in union}
        assert known == {name: set(options) for name, options in policies.items()}


def test_a_profile_by_path_and_the_memory_share_act(tmp_path: Path):
    path = tmp_path / "own.json"
    path.write_text(load_profile("h200_sxm").to_json())
    raw = {**BASE, "hardware": {"profile": str(path)}}
    assert outcome(raw=raw) == outcome("hardware.gpu=h200_sxm")
    own_memory = {**BASE, "engine": {**BASE["engine"], "num_gpu_blocks_override": None}}
    assert outcome("engine.gpu_memory_utilization=0.25", raw=own_memory) != outcome(raw=own_memory)
    tight = {**own_memory, "engine": {**own_memory["engine"], "gpu_memory_utilization": 0.25}}
    assert outcome("kv_compression.owning_layers=0.5", raw=tight) != outcome(raw=tight)


def test_what_becomes_of_older_tokens_acts():
    hot, kept = "kv_compression.hot_tokens=64", "kv_compression.keep_ratio=0.6"
    outcomes = [
        outcome(),
        outcome(hot),
        outcome(hot, "kv_compression.cold_dtype=int8"),
        outcome(hot, kept),
        outcome(kept),
        outcome(kept, "kv_compression.keep_recent=300"),
    ]
    assert len(set(outcomes)) == len(outcomes)


def test_the_prefix_cache_and_its_start_act():
    sessions = {"turns": 4, "system_prompt_tokens": 64, "turn_gap_s": 1.0}
    workload = {**BASE["workload"], "input_tokens": 90, "output_tokens": 30, "sessions": sessions}
    raw = {**BASE, "workload": workload}
    off = outcome(raw=raw)
    on = outcome("engine.enable_prefix_caching=true", raw=raw)
    warm = outcome("engine.enable_prefix_caching=true", "engine.cache_at_start=warm", raw=raw)
    assert len({off, on, warm}) == 3


def test_who_comes_first_acts_where_prompts_share_prefixes():
    sessions = {"turns": 4, "system_prompt_tokens": 64, "system_prompts": 3, "turn_gap_s": 0.5}
    workload = {
        **BASE["workload"],
        "request_rate": 200,
        "input_tokens": 90,
        "output_tokens": 30,
        "sessions": sessions,
    }
    engine = {**BASE["engine"], "enable_prefix_caching": True, "max_num_seqs": 2}
    raw = {**BASE, "workload": workload, "engine": engine, "cluster": {"replicas": 1}}
    for name, fcfs in (("prefix_first", "chunked"), ("static_batch, group_by: prefix", "static_batch")):
        first = outcome(f"policies.batcher={{name: {name}}}", raw=raw)
        assert first != outcome(f"policies.batcher={fcfs}", raw=raw)
        for option in ("lookahead: 2", "max_overtaken: 1"):
            assert outcome(f"policies.batcher={{name: {name}, {option}}}", raw=raw) != first


def test_affinities_act_where_prompts_share_prefixes():
    sessions = {"turns": 5, "system_prompt_tokens": 64, "system_prompts": 6, "turn_gap_s": 0.5}
    workload = {**BASE["workload"], "input_tokens": 90, "output_tokens": 30, "sessions": sessions}
    engine = {**BASE["engine"], "enable_prefix_caching": True, "num_gpu_blocks_override": 60}
    engine["max_model_len"] = 900
    raw = {**BASE, "workload": workload, "engine": engine, "cluster": {"replicas": 3}}
    routers = [
        "least_loaded",
        "prefix_affinity",
        "{name: prefix_affinity, max_imbalance: 0}",
        "{name: prefix_affinity, signal: cached}",
        "{name: prefix_affinity, remember_blocks: 20}",
        "session_affinity",
        "{name: session_affinity, max_imbalance: 0}",
    ]
    outcomes = [outcome(f"policies.router={router}", raw=raw) for router in routers]
    assert len(set(outcomes)) == len(outcomes)
    for policy in (
        "router=prefix_affinity",
        "batcher=prefix_first",
        "batcher={name: static_batch, group_by: prefix}",
    ):
        with pytest.raises(ConfigError, match=r"set engine\.enable_prefix_caching: true"):
            load_scenario(raw, ["engine.enable_prefix_caching=false", f"policies.{policy}"])
    with pytest.raises(ConfigError, match="remember_blocks acts with signal: own"):
        load_scenario(raw, ["policies.router={name: prefix_affinity, signal: cached, remember_blocks: 9}"])


def test_evictions_differ_on_a_small_cache():
    sessions = {"turns": 4, "system_prompt_tokens": 64, "system_prompts": 3, "turn_gap_s": 0.5}
    workload = {**BASE["workload"], "input_tokens": 90, "output_tokens": 30, "sessions": sessions}
    engine = {**BASE["engine"], "enable_prefix_caching": True, "num_gpu_blocks_override": 120}
    raw = {**BASE, "workload": workload, "engine": engine}
    outcomes = {name: outcome(f"policies.eviction={name}", raw=raw) for name in POLICY_OPTIONS["eviction"]}
    assert len(set(outcomes.values())) >= 4
    assert outcomes["lru"] != outcomes["belady"]
    hits = {}
    for name in ("lru", "lfu", "belady"):
        for start in ("cold", "warm"):
            scenario = load_scenario(raw, [f"policies.eviction={name}", f"engine.cache_at_start={start}"])
            hits[name, start] = simulate(scenario).summary["sim"]["prefix_hit_rate"]
    for start in ("cold", "warm"):  # the oracle knows the warming requests too
        assert hits["belady", start] > max(hits["lru", start], hits["lfu", start])
    short = outcome("policies.eviction={name: ttl, ttl_s: 0.2}", raw=raw)
    assert short != outcomes["ttl"]
