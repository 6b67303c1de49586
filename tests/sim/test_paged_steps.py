"""Replicas whose KV is in host memory: what steps wait for, what moves beside them, and that every option acts."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from sim.kv.access.recording import sample
from sim.kv.access.recording_files import write_recording
from sim.kv.access.top_k import TopK
from sim.run_directory import KV_ACCESS, TIMELINE, write_run
from sim.scenario.kv_access import KvAccessConfig
from sim.scenario.reading import load_scenario
from sim.scenario.sections import PoliciesConfig
from sim.simulation import Result, build_load, simulate
from sim.studies.flags import engine_flags
from tests.sim.exactness import assert_same_columns, assert_scenario_exact
from workloads.errors import ConfigError

# Tight on purpose: HBM holds less than a step reads when the batch is full, and the pool is short of blocks at times.
BASE = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100_sxm"},
    "engine": {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": 1500,
        "num_gpu_blocks_override": 330,
    },
    "kv_access": {"pattern": {"name": "top_k", "churn": 0.1}, "resident": 0.2},
    "cluster": {"replicas": 2},
    "workload": {
        "input_tokens": {"uniform": [20, 1200]},
        "output_tokens": {"uniform": [1, 120]},
        "request_rate": 60,
        "num_requests": 30,
    },
}
PATTERNS = ["full", "sliding_window", "top_k"]
POLICIES = ["none", "stride", "attention_weighted", "scheduled", "oracle", "{name: oracle, depth: 3}"]


def run(*overrides: str, raw: dict = BASE) -> Result:
    return simulate(load_scenario(raw, overrides))


def outcome(*overrides: str, raw: dict = BASE) -> str:
    """Everything of a run but what only repeats the scenario."""
    result = run(*overrides, raw=raw)
    summary = {k: v for k, v in result.summary.items() if k not in ("date", "sim")}
    prefetch = {
        k: v for k, v in result.summary["sim"]["prefetch"].items() if k not in ("policy", "page_bytes")
    }
    columns = {k: v.tolist() for k, v in result.requests.columns.items()}
    return json.dumps([summary, prefetch, columns])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("policy", POLICIES)
def test_fast_forward_changes_nothing(pattern, policy):
    assert_scenario_exact(
        BASE, (f"kv_access.pattern={pattern}", f"policies.prefetch={policy}", "links.latency_us=3")
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_byte_has_one_fate_and_went_over_the_link(policy):
    result = run(f"policies.prefetch={policy}")
    account, links = result.summary["sim"]["prefetch"], result.summary["sim"]["links"]
    fates = ("useful_bytes", "late_bytes", "wasted_bytes")
    assert account["issued_bytes"] == sum(account[fate] for fate in fates)
    assert account["unread_bytes"] == account["in_flight_bytes"] == 0  # every sequence has ended
    assert account["reads"] == account["hits"] + account["late"] + account["demanded"]
    moved = {owner: use["bytes_total"] for owner, use in links["pcie_h2d"]["by_owner"].items()}
    assert moved.get("demand", 0) == account["demand_bytes"] + account["waited_bytes"]
    assert moved.get("prefetch", 0) == account["issued_bytes"] - account["waited_bytes"]
    assert result.summary["sim"]["preemptions"] > 0
    facts = sum(steps.sum(axis=0) for steps in result.paging.steps)
    assert facts.tolist() == [
        account["reads"],
        account["hits"],
        account["demand_bytes"] + account["waited_bytes"],
        account["issued_bytes"] - account["waited_bytes"],
    ]
    for steps, log in zip(result.paging.steps, result.replicas, strict=True):
        assert len(steps) == log.step_ns.size
        assert ((steps[:, 0] > 0) == (log.decodes_of_steps() > 0)).all()


def test_a_step_waits_for_its_bytes_at_the_bandwidth_of_the_link():
    result = run("links.pcie_h2d=20", "links.latency_us=5")
    blocking = np.concatenate([steps[:, 2] for steps in result.paging.steps])
    waits = np.count_nonzero(blocking)
    assert waits > 50
    exact_s = blocking.sum() / 20e9 + 5e-6 * waits
    assert result.summary["sim"]["transfer_wait_s"] == pytest.approx(exact_s, abs=1e-9 * waits)


def test_kv_that_is_all_in_hbm_is_read_at_no_extra_cost():
    there = run("kv_access.pattern=full", "kv_access.resident=1")
    plain = run(raw={**BASE, "kv_access": {}})
    assert there.summary["sim"]["prefetch"]["hit_rate"] == 1
    assert_same_columns(plain.requests.columns, there.requests.columns)


def test_attention_is_priced_by_the_tokens_that_it_reads():
    small = run("kv_access.pattern={name: sliding_window, window_tokens: 64}", "kv_access.resident=1")
    full = run("kv_access.pattern=full", "kv_access.resident=1")
    assert small.summary["sim"]["prefetch"]["hit_rate"] > 0.99
    assert small.summary["mean_tpot_ms"] < full.summary["mean_tpot_ms"]


def test_who_knows_more_waits_less():
    waits = {
        policy: run(f"policies.prefetch={policy}").summary["sim"]["transfer_wait_s"] for policy in POLICIES
    }
    assert waits["oracle"] < waits["scheduled"] < waits["none"]


def test_late_prefetches_are_told_where_the_link_is_slow():
    slow = run("links.pcie_h2d=2", "policies.prefetch=oracle").summary["sim"]["prefetch"]
    assert slow["late"] > 0
    assert slow["waited_bytes"] <= slow["late_bytes"] == slow["late"] * slow["page_bytes"]


def test_resident_is_a_share_of_the_pool_or_gibibytes():
    page_bytes = 8 * 16 * 4096  # 8 of 32 layers, 16 tokens, 8 heads of 128 times 2 times 2 bytes
    share = run("kv_access.resident=0.5").summary["sim"]["prefetch"]
    assert share["page_bytes"] == page_bytes
    assert share["resident_pages"] == 329 * 4 // 2
    gib = run("kv_access.resident=null", "kv_access.resident_gib=0.25").summary["sim"]["prefetch"]
    assert gib["resident_pages"] == 2**28 // page_bytes
    default = run("kv_access.resident=null").summary["sim"]["prefetch"]
    assert default["resident_pages"] == 329 * 4 // 2


# Every option acts.


@pytest.mark.parametrize("override", ["kv_access.resident=0.4", "kv_access.layer_groups=8", "seed=1"])
def test_fields_of_the_section_act(override):
    assert outcome(override) != outcome()


ACCESS_OPTIONS = {
    "full": {},
    "sliding_window": {"window_tokens": 100, "sink_tokens": 200, "full_groups": [0]},
    "top_k": {
        "fraction": 0.3,
        "blocks": 9,
        "zipf_exponent": 2.0,
        "churn": 0.5,
        "locality_blocks": 1,
        "near_tokens": 64,
        "sink_tokens": 40,
        "reach_first_tokens": 100.0,
        "reach_last_tokens": 1000.0,
        "decay": 0.0,
    },
    "recorded": {"path": None},  # tested below
}
PREFETCH_OPTIONS = {
    "none": {},
    "stride": {"depth": 1},
    "attention_weighted": {"top": 8, "second_level_weight": 0.02, "depth": 1},
    "scheduled": {},
    "oracle": {"depth": 3},
}


def known_options(union) -> dict[str, set[str]]:
    members = [
        member for member in union.__args__ if isinstance(member, type) and issubclass(member, BaseModel)
    ]
    return {m.model_fields["name"].default: set(m.model_fields) - {"name"} for m in members}


def test_the_tables_are_complete():
    pattern = KvAccessConfig.model_fields["pattern"].annotation
    union = next((part for part in pattern.__args__ if hasattr(part, "__metadata__")), pattern)
    patterns = known_options(getattr(union, "__origin__", union))
    assert patterns == {name: set(options) for name, options in ACCESS_OPTIONS.items()}
    policies = known_options(PoliciesConfig.model_fields["prefetch"].annotation)
    del policies["session"]  # which acts on prefix caches: tests/sim/test_kv_tiers.py
    assert policies == {name: set(options) for name, options in PREFETCH_OPTIONS.items()}


def cases(table: dict) -> list[tuple[str, str, object]]:
    return [
        (name, option, value)
        for name, options in table.items()
        for option, value in options.items()
        if value is not None
    ]


@pytest.mark.parametrize(("name", "option", "value"), cases(ACCESS_OPTIONS))
def test_every_option_of_every_pattern_acts(name, option, value):
    plain = json.dumps({"name": name})
    other = json.dumps({"name": name, option: value})
    assert outcome(f"kv_access.pattern={other}") != outcome(f"kv_access.pattern={plain}")


@pytest.mark.parametrize(("name", "option", "value"), cases(PREFETCH_OPTIONS))
def test_every_option_of_every_prefetcher_acts(name, option, value):
    needed = {"second_level_weight": 0.05} if option == "depth" and name == "attention_weighted" else {}
    plain = json.dumps({"name": name, **needed})
    other = json.dumps({"name": name, **needed, option: value})
    assert outcome(f"policies.prefetch={other}") != outcome(f"policies.prefetch={plain}")


def test_prefetchers_differ():
    outcomes = [outcome(f"policies.prefetch={policy}") for policy in POLICIES if "depth" not in policy]
    assert len(set(outcomes)) == len(outcomes)


def test_a_recording_is_replayed_and_found_beside_the_scenario(tmp_path):
    for name, fraction in (("one", 0.1), ("other", 0.4)):
        access = TopK(fraction=fraction).build(4, 16, 0)
        write_recording(tmp_path / f"{name}.jsonl", sample(access, 0, 800, 20))
    raw = {**BASE, "kv_access": {"pattern": {"name": "recorded", "path": "one.jsonl"}, "resident": 0.2}}
    (tmp_path / "scenario.yaml").write_text(json.dumps(raw))
    one = simulate(load_scenario(tmp_path / "scenario.yaml"))
    other = simulate(
        load_scenario(tmp_path / "scenario.yaml", [f"kv_access.pattern.path={tmp_path}/other.jsonl"])
    )
    assert one.summary["sim"]["prefetch"]["reads"] < other.summary["sim"]["prefetch"]["reads"]


# Refusals.


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policies.allocator=grow"], "policies.allocator: grow does not go with kv_access.pattern"),
        (["engine.enable_prefix_caching=true"], "set engine.enable_prefix_caching: false"),
        (["kv_compression.keep_ratio=0.5"], "leave kv_compression out"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_scenario(BASE, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kv_access.layer_groups=5"], "does not divide the 32 layers of .*; take one of 1, 2, 4, 8, 16, 32"),
        (["kv_access.resident=0.0001"], "kv_access.resident: a page takes .* and none fits"),
        (["kv_access.resident=null", "kv_access.resident_gib=90"], "90.0 GiB of pages do not fit in the"),
        (["model=gpt-oss-120b"], "has sliding windows of its own in 18 layers"),
        (
            ["kv_access.pattern={name: sliding_window, full_groups: [7]}"],
            "full_groups: there is no group 7; groups are 0 to 3",
        ),
        (["kv_access.pattern={name: recorded, path: nowhere.jsonl}"], "nowhere.jsonl: no such file"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(overrides, message):
    scenario = load_scenario(BASE, overrides)
    with pytest.raises(Exception, match=message) as error:
        simulate(scenario)
    assert "\n" not in str(error.value)


def test_that_no_engine_flag_gives_this_is_said():
    notes = engine_flags(load_scenario(BASE, ["policies.prefetch=oracle"])).notes
    assert any(note.startswith("kv_access: ") for note in notes)
    assert any(note.startswith("oracle: ") for note in notes)
    assert not any(
        "kv_access" in note for note in engine_flags(load_scenario({**BASE, "kv_access": {}})).notes
    )


# Files.


def test_the_heat_map_and_the_steps_are_in_the_files_of_a_run(tmp_path):
    result = run("policies.prefetch=stride")
    write_run(result, build_load(result.scenario).trace, tmp_path)
    account = result.summary["sim"]["prefetch"]
    heat = pq.read_table(tmp_path / KV_ACCESS).to_pydict()
    assert sum(heat["page_reads"]) == account["reads"]
    assert set(heat["group"]) == {0, 1, 2, 3}
    timeline = pq.read_table(tmp_path / TIMELINE).to_pydict()
    assert sum(timeline["kv_page_reads"]) == account["reads"]
    assert sum(timeline["kv_page_hits"]) == account["hits"]
    assert sum(timeline["kv_blocking_bytes"]) == account["demand_bytes"] + account["waited_bytes"]
    assert sum(timeline["kv_prefetched_bytes"]) == account["issued_bytes"] - account["waited_bytes"]


def test_the_same_seed_gives_the_same_accesses_whatever_the_policy():
    """Where all steps are the same ones, as they are for one sequence at a time, so are all reads."""
    one = {
        **BASE,
        "engine": {**BASE["engine"], "max_num_seqs": 1},
        "kv_access": {**BASE["kv_access"], "resident": 0.05},
    }
    runs = [run(f"policies.prefetch={policy}", raw=one).paging for policy in ("none", "attention_weighted")]
    assert_same_columns(runs[0].columns, runs[1].columns)
    assert runs[0].summary["hits"] != runs[1].summary["hits"]
