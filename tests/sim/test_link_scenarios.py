"""`links` in a scenario: every field acts, and what does not act or cannot be is refused by name."""

from __future__ import annotations

import json

import pytest

from sim.errors import ConfigError
from sim.scenario.reading import load_scenario
from sim.simulation import simulate
from tests.sim.moving import GB

SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "cluster": {"replicas": 2},
    "workload": {"input_tokens": 300, "output_tokens": 60, "request_rate": 30, "num_requests": 60},
}


def load(extra: str = "") -> str:
    flow = '{"route": "load", "gb_per_s": 60, "duration_s": 1, "owner": "weights"'
    return f"links.background=[{flow}{extra}}}]"


def summary_of(*overrides: str) -> dict:
    summary = simulate(load_scenario(SCENARIO, overrides)).summary
    return {name: value for name, value in summary.items() if name != "date"}


def with_background(extra: str = "", *more: str) -> dict:
    return summary_of(load(extra), *more)


def test_a_scenario_with_a_background_load_is_slower_and_says_who_used_what():
    quiet, busy = summary_of(), with_background()
    assert "links" not in quiet["sim"]
    assert busy["mean_itl_ms"] > quiet["mean_itl_ms"]
    assert busy["sim"]["transfer_wait_s"] == 0.0
    pcie = busy["sim"]["links"]["pcie_h2d"]
    assert pcie["by_owner"]["weights"]["bytes_total"] == pcie["bytes_total"] == 120 * GB
    assert pcie["effective_bytes_per_s"] == pytest.approx(60 * GB)
    hbm = busy["sim"]["links"]["hbm"]
    assert set(hbm["by_owner"]) == {"step", "weights"}
    assert 0 < hbm["utilization"] < 1
    assert json.dumps(busy) == json.dumps(with_background("", "simulation.fast_forward=false"))


@pytest.mark.parametrize("other", [', "start_s": 0.2', ', "every_s": 1.5', ', "replica": 1'])
def test_every_field_of_a_background_flow_acts(other):
    assert with_background(other) != with_background()


def test_latency_acts_on_the_transfers_of_an_engine():
    """Regions that grow move within HBM, and their steps wait for that: 2 ms each time, and more."""
    grow = ("policies.allocator=grow", "engine.num_gpu_blocks_override=300", "workload.output_tokens=300")
    plain, late = summary_of(*grow), summary_of(*grow, "links.latency_us=2000")
    assert plain["sim"]["links"]["hbm"]["by_owner"]["copy"]["bytes_total"] > 0
    assert late["sim"]["transfer_wait_s"] > plain["sim"]["transfer_wait_s"] + 2e-3
    assert late["mean_itl_ms"] > plain["mean_itl_ms"]


def test_every_bandwidth_acts_where_something_moves_over_the_link():
    """Routes that use a link, and the link; half the bandwidth lets a flow at its rate fill twice the share."""
    for route, link in (
        ("load", "hbm"),
        ("load", "pcie_h2d"),
        ("offload", "pcie_d2h"),
        ("disk_load", "disk"),
        ("nvlink_send", "nvlink_out"),
        ("nvlink_receive", "nvlink_in"),
        ("nic_send", "nic_out"),
        ("nic_receive", "nic_in"),
    ):
        flow = f'links.background=[{{"route": "{route}", "gb_per_s": 10, "duration_s": 1}}]'
        uses = [
            summary_of(
                flow,
                "links.disk=500" if link != "disk" and "disk" in route else "seed=0",
                f"links.{link}={gb}",
            )
            for gb in (400, 800)
        ]
        first, second = (use["sim"]["links"][link]["utilization"] for use in uses)
        assert first > 1.5 * second, link


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["links.hbm=3000"], "links.hbm: nothing in this scenario moves over it"),
        (["links.latency_us=3"], "links.latency_us: no engine"),
        ([load(), "links.disk=5"], "links.disk: nothing"),
        ([load(', "replica": 2')], "background.0.replica: 2 is not there"),
        ([load(', "every_s": 0.5')], r"every_s \(0.5\) must be at least"),
        ([load(), "links.pcie_h2d=30"], "background.0.gb_per_s: 60 is more than"),
        (['links.background=[{"route": "disk_load", "gb_per_s": 1, "duration_s": 1}]'], "give links.disk"),
        (['links.background=[{"route": "load", "gb_per_s": 1}]'], "background.0.duration_s: is missing"),
    ],
)
def test_what_does_not_act_or_cannot_be_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        simulate(load_scenario(SCENARIO, overrides))
