"""Who used which link when: accounts and change points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from sim.engine.clock import At, Clock, Priority
from sim.errors import ConfigError
from sim.links.fabric import Fabric
from sim.links.machine import add_machine
from sim.profile import load_profile
from tests.sim.test_link_flows import GB, one_link
from tests.sim.test_link_histories import histories, play


def test_accounts_of_two_owners():
    """100 bytes of each share a link of 1 byte/ns; then one goes on alone, then nobody."""
    env, fabric, link = one_link()
    fabric.start((link,), 100, "offload")
    fabric.start((link,), 300, "prefetch")
    env.run()
    total, owners = fabric.use(link, duration_ns=1000)
    assert (total.bytes_total, total.busy_s, total.utilization) == (400, 400e-9, 0.4)
    assert total.effective_bytes_per_s == pytest.approx(GB)
    assert (owners["offload"].busy_s, owners["prefetch"].busy_s) == (200e-9, 400e-9)
    assert owners["offload"].effective_bytes_per_s == pytest.approx(GB / 2)
    assert owners["prefetch"].utilization == 0.3


def test_an_account_counts_bytes_in_flight():
    env, fabric, link = one_link(3 * GB)
    for _ in range(2):
        fabric.start((link,), 1000, "offload")
    env.run(until=101)
    total, owners = fabric.use(link)
    assert total.bytes_total == 2 * 151  # whole bytes of 151.5 each
    assert total.busy_s == owners["offload"].busy_s == 101e-9


def test_an_unused_link():
    _, fabric, link = one_link()
    total, owners = fabric.use(link)
    assert (total.bytes_total, total.busy_s, total.utilization, total.effective_bytes_per_s) == (0, 0, 0, 0)
    assert owners == {}


def test_change_points():
    env = Clock()
    fabric = Fabric(env)
    hbm, pcie = fabric.add("hbm", 100 * GB), fabric.add("pcie", 10 * GB)
    fabric.start((pcie, hbm), 1000, "offload")
    fabric.start((pcie, hbm), 1000, "offload")  # the same owner and path: one rate, which does not change
    at_50 = At(env, 50, Priority.ARRIVAL)
    at_50.callbacks.append(lambda _: fabric.start((pcie, hbm), 500, "prefetch"))
    at_50.callbacks.append(lambda _: fabric.start((hbm, hbm), 1000, "copy"))
    env.run()
    history = fabric.history()
    offload = history["pcie"]["offload"]
    assert offload.t_ns.tolist() == [0, 50, 200, 250]
    assert (offload.bytes_per_s / GB).tolist() == pytest.approx([10, 20 / 3, 10, 0])
    assert history["hbm"]["copy"].t_ns.tolist() == [50, 73]
    assert (history["hbm"]["copy"].bytes_per_s / GB).tolist() == pytest.approx([90, 0])
    assert "copy" not in history["pcie"]


def integral(points, end_ns):
    return float(points.bytes_per_s @ np.diff(points.t_ns, append=end_ns)) / GB


@settings(max_examples=200, deadline=None)
@given(histories())
def test_change_points_integrate_to_the_accounts_and_never_exceed_the_link(history):
    fabric, _ = play(*history)
    now, series = fabric.env.now_ns, fabric.history()
    for link in fabric.links.values():
        _, owners = fabric.use(link)
        points = series.get(link.name, {})
        rate_per_ns = link.bytes_per_s / GB
        for owner, use in owners.items():
            # A flow keeps its share to the whole nanosecond in which it ends; a cancelled one has moved whole bytes,
            # once for each time that its path names the link.
            over = integral(points[owner], now) - use.bytes_total if owner in points else 0.0
            assert (
                -1e-6
                <= over
                <= rate_per_ns * len(history[1]) + sum(len(script.path) for script in history[1])
            )
        if points:
            t_ns = np.unique(np.concatenate([p.t_ns for p in points.values()]))
            rates = sum(
                np.concatenate([[0], p.bytes_per_s])[np.searchsorted(p.t_ns, t_ns, "right")]
                for p in points.values()
            )
            assert (rates <= link.bytes_per_s * (1 + 1e-12)).all()
            assert not rates.size or rates[-1] == 0


def test_the_links_of_a_profile():
    env = Clock()
    fabric = Fabric(env)
    device = load_profile("h200_sxm").device
    one = add_machine(fabric, "gpu0", device, {"pcie_h2d": 55e9, "disk": 7e9})
    two = add_machine(fabric, "gpu1", device)
    assert fabric.links["gpu0.hbm"].bytes_per_s == device.hbm_bytes_per_s
    assert one.pcie_h2d.bytes_per_s == 55 * GB
    assert one.disk is not None
    assert two.disk is None
    flows = [fabric.start(path, 55 * GB, "x") for path in (one.load, one.offload, one.send(two), one.copy)]
    env.run()
    load, offload, send, copy = (flow.ended_ns / GB for flow in flows)
    assert load == 1
    assert offload == pytest.approx(55 * GB / device.pcie_bytes_per_s, abs=1e-9)
    assert send == pytest.approx(55 * GB / device.nvlink_bytes_per_s, abs=1e-9)
    assert copy < send
    with pytest.raises(ConfigError, match="no link 'pcie'"):
        add_machine(fabric, "gpu2", device, {"pcie": 1e9})


def test_sending_without_nvlink_or_network():
    env = Clock()
    fabric = Fabric(env)
    device = load_profile("l40s").device
    one, two = (
        add_machine(fabric, name, device.model_copy(update={"nic_bytes_per_s": None})) for name in "ab"
    )
    assert one.nvlink_out is None
    assert one.send(two) == (one.hbm, one.pcie_d2h, two.pcie_h2d, two.hbm)
    three, four = (
        add_machine(fabric, name, device.model_copy(update={"nic_bytes_per_s": 5e10})) for name in "cd"
    )
    assert three.send(four) == (three.hbm, three.nic_out, four.nic_in, four.hbm)
