"""A step beside flows on HBM: closed forms, and nothing at all where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.clock import Clock
from sim.links.fabric import Fabric
from sim.links.stretch import in_turn, stretched_ns, stretched_window_ns

W = 4e12  # bytes/s
seconds = st.floats(0, 1, allow_subnormal=False)
sizes = st.floats(0, 1e12)
phases = st.lists(st.tuples(seconds, sizes), min_size=1, max_size=4)
shares = st.floats(0.01, 1)


@given(st.integers(1, 10**12), phases, seconds)
def test_alone_a_step_costs_what_it_costs(alone_ns, phases, slack_s):
    """At share 1, bit for bit, whatever it is made of."""
    assert stretched_ns(alone_ns, phases, 1.0, W, slack_s) == alone_ns
    window = np.array([alone_ns, 1], dtype=np.int64)
    assert stretched_window_ns(window, phases, 1.0, W, slack_s) is window


@given(st.integers(0, 10**9), seconds, sizes, shares)
def test_one_phase_is_the_roofline(overhead_ns, compute_s, hbm_bytes, share):
    """overhead + max(compute, bytes / (share W)), where alone is that at share 1."""
    alone_ns = overhead_ns + round(1e9 * max(compute_s, hbm_bytes / W))
    expected = overhead_ns + 1e9 * max(compute_s, hbm_bytes / (share * W))
    assert stretched_ns(alone_ns, [(compute_s, hbm_bytes)], share, W) == pytest.approx(expected, abs=1.01)


def test_closed_forms():
    memory_bound = (0.010, 40e9)  # 10 ms of either
    compute_bound = (0.010, 20e9)  # 10 ms of compute, 5 ms of memory
    assert stretched_ns(11_000_000, [memory_bound], 0.5, W) == 21_000_000
    assert stretched_ns(11_000_000, [compute_bound], 0.5, W) == 11_000_000
    assert stretched_ns(11_000_000, [compute_bound], 0.25, W) == 21_000_000
    # Kernel by kernel the memory-bound part stretches; as one phase it hides behind the other's compute.
    assert stretched_ns(20_000_000, [memory_bound, (0.010, 0.0)], 0.5, W) == 30_000_000
    assert stretched_ns(20_000_000, [(0.020, 40e9)], 0.5, W) == 20_000_000
    # The GPU waited 4 ms for the host: the first 4 ms of stretch are free.
    assert stretched_ns(15_000_000, [memory_bound], 0.5, W, slack_s=0.004) == 21_000_000
    assert stretched_ns(25_000_000, [memory_bound], 0.5, W, slack_s=0.014) == 25_000_000


@given(seconds, sizes, shares)
def test_one_phase_and_in_turn_are_the_ends(busy_s, hbm_bytes, share):
    """In turn, a step is longer by memory (1 / share - 1); as one phase never by more than that."""
    apart = in_turn(busy_s, hbm_bytes, W)
    longer_ns = stretched_ns(1, apart, share, W) - 1
    assert longer_ns == pytest.approx(1e9 * hbm_bytes / W * (1 / share - 1), abs=1)
    assert stretched_ns(1, [(busy_s, hbm_bytes)], share, W) <= longer_ns + 2


@given(phases, shares, shares, seconds)
def test_less_bandwidth_never_makes_a_step_shorter(phases, one, other, slack_s):
    less, more = sorted((one, other))
    longer = stretched_ns(1, phases, less, W, slack_s)
    assert longer >= stretched_ns(1, phases, more, W, slack_s) >= 1


@given(
    st.lists(st.tuples(st.integers(1, 10**10), seconds, sizes, seconds), min_size=1, max_size=20),
    shares,
    st.floats(0, 1e12),
)
def test_a_window_is_its_steps_bit_for_bit(steps, share, weights):
    alone, compute, moved, slack = (np.array(column) for column in zip(*steps, strict=True))
    window = stretched_window_ns(alone, [(compute, moved), (0.001, weights)], share, W, slack)
    single = [
        stretched_ns(int(a), [(float(c), float(m)), (0.001, weights)], share, W, float(s))
        for a, c, m, s in zip(alone, compute, moved, slack, strict=True)
    ]
    assert window.dtype == np.int64
    assert window.tolist() == single


def test_an_engine_beside_an_offload():
    """A standing flow gives the share: 1 bit for bit before and after, less while the offload lasts."""
    env = Clock()
    fabric = Fabric(env)
    hbm, pcie = fabric.add("hbm", W), fabric.add("pcie_d2h", 5e10)
    engine = fabric.hold((hbm,), "step")
    step = [(0.005, 0.005 * W)]
    prices = [stretched_ns(6_000_000, step, engine.share_of(hbm), W)]
    fabric.start((hbm, pcie), 50_000_000, "offload")
    assert engine.share_of(hbm) == 1 - 5e10 / W
    prices.append(stretched_ns(6_000_000, step, engine.share_of(hbm), W))
    assert fabric.next_change_ns(hbm) == 1_000_000
    env.run()
    prices.append(stretched_ns(6_000_000, step, engine.share_of(hbm), W))
    assert prices == [6_000_000, 6_000_000 + round(5e6 * (1 / (1 - 5e10 / W) - 1)), 6_000_000]
