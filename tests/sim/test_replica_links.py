"""Steps beside flows: who is stretched by what moves over the links of a replica, in closed form."""

from __future__ import annotations

import numpy as np

from sim.links.background import Background
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of
from tests.sim.moving import BUSY_PCIE, GB, HBM, PCIE, network_of


def step_times(cost, network, output_tokens=20, **options):
    _, (log,) = run(trace_of((0, 1, output_tokens)), cost, network=network, **options)
    return log.step_ns.tolist()


def test_a_step_that_is_bound_by_memory_slows_by_what_flows_take():
    """A tenth of the HBM goes to a flow over PCIe: 1 ms becomes 1 / 0.9 ms."""
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    assert step_times(cost, network_of(BUSY_PCIE)) == [1_111_111] * 20
    assert step_times(cost, network_of()) == step_times(cost, None) == [1_000_000] * 20


def test_a_step_that_is_bound_by_compute_or_by_the_host_does_not():
    compute = AffineCost(base_ns=1_000_000, step_bytes=900_000, compute_s=1e-3, hbm_bytes_per_s=HBM)
    assert step_times(compute, network_of(BUSY_PCIE)) == [1_000_000] * 20
    waits = AffineCost(base_ns=1_000_000, step_bytes=900_000, slack_s=1e-4, hbm_bytes_per_s=HBM)
    assert step_times(waits, network_of(BUSY_PCIE)) == [1_000_000] * 20


def test_two_directions_of_pcie_take_two_tenths():
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    offload = Background("checkpoint", "offload", 100 * GB, PCIE)
    assert step_times(cost, network_of(BUSY_PCIE, offload)) == [1_250_000] * 20


def test_a_copy_and_the_engine_share_max_min_fairly():
    """Reading and writing, a copy counts twice on HBM: each of the three thirds is a third."""
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    copies = Background("copies", "copy", 100 * GB, HBM // 2)
    assert step_times(cost, network_of(copies)) == [3_000_000] * 20


def test_traffic_that_grows_with_the_context():
    """Each step reads a token more: alone c, beside a flow that takes a tenth round(c / 9) longer."""
    cost = AffineCost(base_ns=1, per_context_ns=1000, bytes_per_context=1000, hbm_bytes_per_s=HBM)
    alone = step_times(cost, network_of())
    beside = step_times(cost, network_of(BUSY_PCIE))
    assert alone[1:] == [1 + 1000 * context for context in range(2, 21)]
    moved = 1000.0 * np.arange(2, 21)
    longer = np.rint(1e9 * (moved / HBM / 0.9 - moved / HBM))
    assert beside[1:] == (alone[1:] + longer).tolist()


def test_a_step_in_progress_keeps_its_price_and_the_next_one_has_another():
    cost = AffineCost(base_ns=1_000_000, step_bytes=1_000_000, hbm_bytes_per_s=HBM)
    short = Background("weights", "load", 300_000, PCIE, start_ns=2_500_000)  # 3 ms long
    assert step_times(cost, network_of(short), 8) == [10**6] * 3 + [1_111_111] * 3 + [10**6] * 2


def test_repeated_flows_come_again_but_never_pile_up():
    once = Background("weights", "load", 200_000, PCIE, start_ns=0, every_ns=3_000_000)  # 2 of every 3 ms
    network = network_of(once)
    step_times(AffineCost(base_ns=1_000_000), network, 9)
    assert network.env.now_ns == 9_000_000
    use, _ = network.fabric.use(network.fabric.links["0.pcie_h2d"])
    assert (use.bytes_total, use.busy_s) == (600_000, 6e-3)
    slow = Background(
        "copies", "copy", 1_000_000, HBM // 2, every_ns=2_000_000
    )  # takes 3 ms beside the engine
    network = network_of(slow)
    step_times(AffineCost(base_ns=1_000_000), network, 9)
    _, owners = network.fabric.use(network.fabric.links["0.hbm"])
    assert owners["copies"].bytes_total == 6_000_000
