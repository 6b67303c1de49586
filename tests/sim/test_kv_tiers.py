"""`kv_tiers` and `prefetch: session` in a scenario: every field acts, what does not fit is refused, results agree."""

from __future__ import annotations

import json

import pytest

from sim.scenario.reading import load_scenario
from sim.simulation import simulate
from sim.studies.flags import engine_flags
from tests.sim.exactness import assert_scenario_exact
from workloads.errors import ConfigError

# Short of blocks on purpose: sessions fall out of HBM between their turns, and sequences are preempted.
BASE = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100_sxm"},
    "engine": {
        "max_num_seqs": 12,
        "max_num_batched_tokens": 512,
        "max_model_len": 4000,
        "num_gpu_blocks_override": 400,
        "enable_prefix_caching": True,
    },
    "kv_tiers": {"host_gib": 1.0},
    "workload": {
        "input_tokens": {"uniform": [20, 600]},
        "output_tokens": {"uniform": [1, 200]},
        "request_rate": 12,
        "num_requests": 60,
        "sessions": {"turns": 4, "turn_gap_s": 1.5, "system_prompt_tokens": 64, "system_prompts": 3},
    },
}
DISK = ("kv_tiers.host_gib=0.25", "kv_tiers.disk_gib=4.0", "links.disk=2.0")
SESSION = "policies.prefetch={name: session, expected_gap_s: 1.5, lead_s: 0.5}"


def result(*overrides):
    return simulate(load_scenario(BASE, overrides))


def outcome(*overrides):
    done = result(*overrides)
    summary = {name: value for name, value in done.summary.items() if name != "date"}
    summary["sim"] = {name: value for name, value in summary["sim"].items() if name != "warnings"}
    return json.dumps([summary, {name: column.tolist() for name, column in done.requests.columns.items()}])


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ((), ("kv_tiers.host_gib=0.25",)),
        ((), ("kv_tiers.write=back",)),
        ((), ("kv_tiers.reload=never",)),
        (("links.pcie_h2d=0.5",), ("kv_tiers.reload=always",)),
        ((), ("kv_tiers.preempt=swap",)),
        (("kv_tiers.preempt=swap", "links.pcie_h2d=0.5"), ("kv_tiers.preempt=cheaper",)),
        (("kv_tiers.host_gib=0.25",), ("kv_tiers.eviction=lfu",)),
        (("kv_tiers.host_gib=0.25",), DISK),
        (DISK, ("kv_tiers.disk_gib=0.25",)),
        (DISK, ("links.disk=0.2",)),
        ((), ("links.pcie_h2d=2.0",)),
        ((), ("links.pcie_d2h=2.0",)),
        ((), ("links.latency_us=2000",)),
        ((), (SESSION,)),
        ((SESSION,), ("policies.prefetch.expected_gap_s=0.7",)),
        ((SESSION,), ("policies.prefetch.expected_gap_s=null",)),
        ((SESSION,), ("policies.prefetch.lead_s=1.2",)),
        ((SESSION,), ("policies.prefetch.share=0.02",)),
    ],
)
def test_every_field_acts(base, other):
    assert outcome(*base) != outcome(*base, *other)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("kv_tiers.write=back", "kv_tiers.preempt=swap"),
        (*DISK, "kv_tiers.preempt=cheaper"),
        (*DISK, "kv_tiers.write=back", "kv_tiers.reload=always", "policies.eviction=lfu"),
        (SESSION, "cluster.replicas=2"),
        ("policies.prefetch=session", "kv_tiers.write=back", "links.pcie_h2d=2.0"),
    ],
)
def test_fast_forward_changes_nothing(overrides):
    """Not what tiers hold either, at any time."""
    assert_scenario_exact(BASE, overrides)


def test_the_same_seed_gives_the_same_run():
    assert outcome(*DISK, SESSION) == outcome(*DISK, SESSION)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("engine.enable_prefix_caching=false",), "kv_tiers: .*enable_prefix_caching: true"),
        (("kv_tiers.host_gib=0", "kv_tiers.write=back"), "kv_tiers: .*set host_gib"),
        (("kv_tiers.disk_gib=1.0",), "kv_tiers.disk_gib: .*links.disk"),
        (("kv_tiers.reload=never", "kv_tiers.preempt=swap"), "kv_tiers: .*preempt: swap"),
        (("kv_tiers.eviction=belady",), "kv_tiers: .*belady"),
        (("policies.eviction=ttl",), "policies.eviction: .*ttl"),
        (("kv_tiers.host_gib=0", SESSION), "policies.prefetch: .*kv_tiers.host_gib"),
        (("policies.prefetch=stride",), "policies.prefetch: .*kv_access.pattern"),
        (("kv_tiers.reload=never", "links.pcie_h2d=20.0"), "links.pcie_h2d"),
        (("kv_tiers.host_gib=0.001",), "kv_tiers.host_gib: 0.001 holds no block"),
        (("qos={tiers: {a: {share: 1.0}}, tenants: {default: a}}",), "kv_tiers: pools of qos"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        result(*overrides)


def test_the_report_adds_up():
    done = result(*DISK, "kv_tiers.preempt=swap", SESSION)
    report, links = done.summary["sim"]["kv_tiers"], done.summary["sim"]["links"]
    log = done.replicas[0]
    found = sum(report["hit_rates"][tier] for tier in ("hbm", "arriving", "host", "disk"))
    hits, queries = log.prefix_hits + log.preempted_hits, log.prefix_queries + log.preempted_queries
    assert found == pytest.approx(hits / queries)
    assert report["reloaded_tokens"] == log.tiers.reloaded_tokens > 0
    assert report["reload_share"] == pytest.approx(report["reloaded_tokens"] / hits)
    assert 0 < report["host_used_gib_mean"] <= report["host_used_gib_peak"] <= 0.25
    assert 0 < report["disk_used_gib_mean"] <= report["disk_used_gib_peak"] <= 4.0
    fates = report["prefetch"]
    assert fates["issued_bytes"] == sum(
        fates[f"{fate}_bytes"] for fate in ("useful", "late", "wasted", "unread")
    )
    assert links
    block = done.service.capacity.block_bytes
    assert report["reloaded_bytes"] + report["swapped_in_bytes"] == log.tiers.reloaded_tokens // 16 * block


def test_tiers_count_bytes_of_all_gpus():
    one = result("engine.num_gpu_blocks_override=300").summary["sim"]["kv_tiers"]
    two = result("engine.num_gpu_blocks_override=300", "hardware.tensor_parallel_size=2").summary["sim"][
        "kv_tiers"
    ]
    assert one["host_blocks"] == two["host_blocks"]  # half of a block on each of two GPUs


def test_copies_cost_steps_no_more_than_they_take_of_hbm():
    """64 of 3,350 GB/s of HBM while a copy runs. That they cost nothing else: tests/sim/test_tiered_engine.py."""
    roomy = ("engine.num_gpu_blocks_override=20000", "workload.sessions.waits_for_answer=false")
    without = result(*roomy, "kv_tiers.host_gib=0").summary["mean_e2el_ms"]
    beside = result(*roomy, "kv_tiers.reload=never").summary["mean_e2el_ms"]
    assert without < beside < without / (1 - 2 * 64 / 3350)


def test_a_warm_start_is_in_all_tiers():
    done = result("engine.cache_at_start=warm")
    cold = result()
    assert done.replicas[0].prefix_hits > cold.replicas[0].prefix_hits
    assert (
        done.summary["sim"]["kv_tiers"]["offloaded_bytes"]
        < cold.summary["sim"]["kv_tiers"]["offloaded_bytes"]
    )


def test_flags_say_what_the_engine_has():
    own = engine_flags(load_scenario(BASE, ["kv_tiers.reload=always"]))
    assert "--kv-offloading-size 1 " in own.flags + " "
    assert not any("kv_tiers" in note for note in own.notes)
    other = engine_flags(load_scenario(BASE, ["kv_tiers.write=back", SESSION]))
    assert any("kv_tiers write, reload" in note for note in other.notes)
    assert any("prefetch session" in note for note in other.notes)
