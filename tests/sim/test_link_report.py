"""What a run says of its links: rates over time that integrate to the account."""

from __future__ import annotations

import numpy as np
import pytest

from sim.links.background import Background
from sim.links.history import Points
from sim.links.report import MOST_POINTS, bounded, link_report
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of
from tests.sim.moving import PCIE, network_of


def test_many_change_points_become_means_that_move_the_same_bytes():
    rng = np.random.default_rng(1)
    t_ns = np.unique(rng.integers(0, 10**9, 10_000))
    rates = rng.uniform(0, 1e9, t_ns.size)
    rates[-1] = 0.0
    few = bounded(Points(t_ns, rates), 10**9, 500)
    assert few.t_ns.size <= 500

    def moved(points):
        return float(points.bytes_per_s @ np.diff(points.t_ns, append=10**9))

    assert moved(few) == pytest.approx(moved(Points(t_ns, rates)), rel=1e-9)
    assert bounded(few, 10**9, 500) is few


def test_rates_in_columns_integrate_to_the_account():
    network = network_of(Background("weights", "load", 7000, PCIE, start_ns=1000))
    cost = AffineCost(base_ns=1000, step_bytes=600)
    _, logs = run(trace_of((0, 1, 90), (50_000, 3, 70)), cost, network=network)
    report = link_report(network, logs)
    end_s = network.env.now_ns / 1e9
    columns = report.columns
    for link, owner in (("hbm", "step"), ("hbm", "weights"), ("pcie_h2d", "weights")):
        of = (columns["link"] == link) & (columns["owner"] == owner)
        assert 0 < of.sum() <= MOST_POINTS
        moved = columns["bytes_per_s"][of] @ np.diff(columns["t_s"][of], append=end_s)
        assert moved == pytest.approx(
            report.summary["links"][link]["by_owner"][owner]["bytes_total"], rel=1e-6
        )
