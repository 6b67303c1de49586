"""The section `qos`: every field acts, mistakes are one line, results add up."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim.commands.tenant_text import tenant_table, tier_lines
from sim.run_directory import request_columns, timeline_columns
from sim.scenario.qos import QosConfig, TierConfig
from sim.scenario.reading import load_scenario
from sim.simulation import build_load, simulate
from workloads.errors import ConfigError

SESSIONS = {"turns": 4, "system_prompt_tokens": 64, "turn_gap_s": 0.5}
BASE = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100_sxm"},
    "engine": {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "max_model_len": 1500,
        "num_gpu_blocks_override": 161,
        "enable_prefix_caching": True,
    },
    "workload": {
        "input_tokens": 90,
        "output_tokens": 40,
        "request_rate": 60,
        "num_requests": 160,
        "sessions": SESSIONS,
        "tenants": {"small": {"weight": 1}, "large": {"weight": 2}},
    },
    "slo": {"ttft_ms": 400},
    "qos": {
        "isolation": "soft",
        "tiers": {
            "gold": {"share": 0.4, "burst": 1.5},
            "free": {"share": 0.5, "burst": 1.5, "refill_blocks_per_s": 20},
        },
        "tenants": {"small": "gold", "large": "free"},
    },
}
OTHER_TIER_VALUES = {
    "share": 0.3,
    "burst": 1.1,
    "refill_blocks_per_s": 1.5,
    "connections": 3,
    "ttl_s": 0.2,
    "eviction": "lfu",
}
HARD = {
    **BASE["qos"],
    "isolation": "hard",
    "tiers": {"gold": {"share": 0.4}, "free": {"share": 0.5}},
}


def outcome(*overrides: str, raw: dict | None = None) -> str:
    result = simulate(load_scenario(raw or BASE, overrides))
    return json.dumps({name: column.tolist() for name, column in result.requests.columns.items()})


def test_the_table_is_complete():
    assert set(OTHER_TIER_VALUES) == set(TierConfig.model_fields)
    assert set(QosConfig.model_fields) == {"isolation", "tiers", "tenants"}


@pytest.mark.parametrize(("field", "value"), OTHER_TIER_VALUES.items())
def test_every_field_of_a_tier_acts(field, value):
    assert outcome(f"qos.tiers.free.{field}={json.dumps(value)}") != outcome()


def test_isolation_tenants_and_the_whole_section_act():
    hard = {**BASE, "qos": HARD}
    swapped = {**BASE, "qos": {**BASE["qos"], "tenants": {"small": "free", "large": "gold"}}}
    outcomes = {outcome(), outcome(raw=hard), outcome(raw=swapped), outcome("qos=null")}
    assert len(outcomes) == 4
    soft_without_burst = {**BASE, "qos": {**HARD, "isolation": "soft"}}
    assert outcome(raw=soft_without_burst) == outcome(raw=hard)  # nobody may go beyond its share


def test_eviction_of_a_tier_stands_before_that_of_all():
    everywhere = outcome("policies.eviction=lfu", "qos.tiers.gold.eviction=lru")
    one = outcome("qos.tiers.free.eviction=lfu")
    assert everywhere == one
    assert outcome("policies.eviction=lfu") != one


def test_a_warm_cache_is_warm_in_every_pool():
    scenario = load_scenario(BASE, ["engine.cache_at_start=warm", "engine.num_gpu_blocks_override=4000"])
    tenants = simulate(scenario).summary["sim"]["tenants"]
    cold = simulate(load_scenario(BASE, ["engine.num_gpu_blocks_override=4000"])).summary["sim"]["tenants"]
    for name in ("small", "large"):
        assert tenants[name]["prefix_hit_rate"] > cold[name]["prefix_hit_rate"] > 0


def test_tenants_add_up_to_the_run():
    result = simulate(load_scenario(BASE, ["qos.tiers.free.connections=6"]))
    summary, own = result.summary, result.summary["sim"]
    tenants = own["tenants"]
    assert {name: tenant["tier"] for name, tenant in tenants.items()} == {"small": "gold", "large": "free"}
    for key in ("completed", "failed", "num_prompts", "total_input_tokens", "total_output_tokens"):
        assert sum(tenant[key] for tenant in tenants.values()) == summary[key]
    for key in ("request_throughput", "request_goodput", "output_throughput"):
        assert sum(tenant[key] for tenant in tenants.values()) == pytest.approx(summary[key])
    assert tenants["large"]["rejected"] == {"exceeds_connections": tenants["large"]["failed"]}
    assert own["rejected"] == tenants["large"]["rejected"]
    assert any("as qos lets it have" in note for note in own["warnings"])
    mean = sum(tier["kv_blocks_mean"] for tier in own["tiers"].values())
    assert mean == pytest.approx(own["kv_usage_mean"] * 160)
    for tier in own["tiers"].values():
        assert tier["kv_blocks_peak"] <= tier["most_blocks"]
        assert tier["borrowed_blocks_peak"] == max(tier["kv_blocks_peak"] - tier["guaranteed_blocks"], 0)


def test_tenants_without_tiers_have_metrics_too():
    result = simulate(load_scenario(BASE, ["qos=null"]))
    own = result.summary["sim"]
    assert "tiers" not in own
    done = result.requests
    tenant = build_load(result.scenario).trace.tenant[done.completed]
    for code, name in enumerate(("small", "large")):
        assert own["tenants"][name]["p99_ttft_ms"] == pytest.approx(
            np.percentile(done.ttft_ns[tenant == code], 99) / 1e6
        )
        assert own["tenants"][name]["tier"] is None
    single = simulate(load_scenario(BASE, ["qos=null", "workload.tenants=null"]))
    assert "tenants" not in single.summary["sim"]


def test_one_tenant_that_has_everything_runs_as_without_tiers():
    qos = {"isolation": "hard", "tiers": {"all": {"share": 1.0}}, "tenants": {"default": "all"}}
    workload = {**BASE["workload"], "tenants": None}
    assert outcome(raw={**BASE, "workload": workload, "qos": qos}) == outcome(
        raw={**BASE, "workload": workload, "qos": None}
    )


def test_the_timeline_says_what_each_tier_holds():
    result = simulate(load_scenario(BASE))
    columns = timeline_columns(result)
    both = columns["kv_used_blocks_gold"] + columns["kv_used_blocks_free"]
    assert np.array_equal(both, columns["kv_used_blocks"])
    assert columns["kv_used_blocks_gold"].max() > 0
    tenants = request_columns(result.requests, build_load(result.scenario).trace)["tenant"]
    assert set(tenants) == {"small", "large"}


def test_text():
    own = simulate(load_scenario(BASE)).summary["sim"]
    table = tenant_table(own)
    assert table.row_count == 2
    assert [column.header for column in table.columns][:3] == ["tenant", "tier", "done"]
    lines = tier_lines(own)
    assert lines[0].startswith("tier gold: ")
    assert lines[0].endswith("64 promised")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("qos.tenants.small=glod", r"qos: tenants.small: unknown tier 'glod'; did you mean gold\?"),
        ("qos.tiers.silver={share: 0.1}", r"tiers.silver: no tenant is in it"),
        ("qos.isolation=hard", r"tiers.gold.burst: acts in soft isolation only"),
        (
            "qos.tiers.gold.burst=3",
            r"tiers.gold.burst: 3 times a share of 0.4 is more than there is; at most 2.5",
        ),
        (
            "qos.tiers.free={share: 0.5, refill_blocks_per_s: 3}",
            r"tiers.free.refill_blocks_per_s: is for what goes beyond the share; set burst above 1",
        ),
        ("qos.tiers.gold.shares=1", r"qos.tiers.gold.shares: no such field; did you mean share\?"),
        ("policies.allocator=arena", r"policies.allocator: arena "),
        (
            "policies.router={name: prefix_affinity, signal: cached}",
            r"policies.router: prefix_affinity with signal cached",
        ),
        (
            "qos.tiers.gold={share: 0.4, ttl_s: 3, eviction: ttl}",
            r"qos.tiers.gold.ttl_s: its eviction, ttl, has a time of its own",
        ),
    ],
)
def test_mistakes_are_one_line(override, message):
    with pytest.raises(ConfigError, match=message) as error:
        load_scenario(BASE, [override])
    assert "\n" not in str(error.value)


def test_policies_of_caches_need_a_prefix_cache():
    with pytest.raises(ConfigError, match=r"qos.tiers.gold.ttl_s: acts on a prefix cache"):
        load_scenario(BASE, ["engine.enable_prefix_caching=false", "qos.tiers.gold.ttl_s=3"])


def test_shares_of_more_than_there_is_need_soft_isolation():
    tiers = {"gold": {"share": 0.7}, "free": {"share": 0.85}}
    with pytest.raises(ConfigError, match=r"tiers: shares sum to 1.55; hard isolation promises at most 1"):
        load_scenario({**BASE, "qos": {**HARD, "tiers": tiers}})
    load_scenario({**BASE, "qos": {**HARD, "tiers": tiers, "isolation": "soft"}})


def test_tenants_of_the_workload_must_be_those_of_the_section():
    with pytest.raises(
        ConfigError, match=r"qos.tenants.smal: the workload has no such tenant; did you mean small"
    ):
        simulate(load_scenario(BASE, ["qos.tenants.smal=gold"]))
    only = {**BASE["qos"], "tiers": {"gold": {"share": 0.4}}, "tenants": {"small": "gold"}}
    with pytest.raises(ConfigError, match=r"qos.tenants: tenant 'large' of the workload has no tier"):
        simulate(load_scenario({**BASE, "qos": only}))


def test_policies_of_all_that_act_on_none_are_named():
    tiers = {name: {**tier, "eviction": "lfu"} for name, tier in BASE["qos"]["tiers"].items()}
    with pytest.raises(ConfigError, match=r"policies.eviction: fifo acts on no tier"):
        load_scenario({**BASE, "qos": {**BASE["qos"], "tiers": tiers}}, ["policies.eviction=fifo"])
