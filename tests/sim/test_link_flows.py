"""Flows on the clock: closed forms, odd flows, order and notification."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.clock import At, Clock, Priority
from sim.errors import ConfigError, InvariantError
from sim.links.fabric import Fabric

GB = 10**9  # bytes/s; so 1 GB/s is one byte per nanosecond


def one_link(bytes_per_s=GB):
    env = Clock()
    fabric = Fabric(env)
    return env, fabric, fabric.add("link", bytes_per_s)


def at(env, time_ns, do, priority=Priority.ARRIVAL):
    At(env, time_ns - env.now_ns, priority).callbacks.append(lambda _: do())


# Closed forms.


@pytest.mark.parametrize(
    ("num_bytes", "bytes_per_s", "end_ns"),
    [(1, GB, 1), (1000, GB, 1000), (1, 3 * GB, 1), (10, 3 * GB, 4), (64 * GB, 64 * GB, GB), (7, 1, 7 * GB)],
)
def test_one_flow_takes_its_bytes_over_the_bandwidth_rounded_up(num_bytes, bytes_per_s, end_ns):
    env, fabric, link = one_link(bytes_per_s)
    flow = fabric.start((link,), num_bytes, "offload")
    env.run()
    assert (flow.ended_ns, flow.moved_bytes, env.now_ns) == (end_ns, num_bytes, end_ns)


def test_two_equal_flows_take_twice_as_long():
    env, fabric, link = one_link()
    flows = [fabric.start((link,), 500, "offload") for _ in range(2)]
    assert [flow.bytes_per_s for flow in flows] == [GB / 2, GB / 2]
    env.run()
    assert [flow.ended_ns for flow in flows] == [1000, 1000]


def test_two_unequal_flows_and_a_late_one():
    env, fabric, link = one_link()
    small, large = (fabric.start((link,), num_bytes, "offload") for num_bytes in (100, 500))
    env.run()
    assert (small.ended_ns, large.ended_ns) == (200, 600)

    env, fabric, link = one_link()
    first, late = fabric.start((link,), 1000, "offload"), []
    at(env, 400, lambda: late.append(fabric.start((link,), 200, "prefetch")))
    env.run()
    assert (late[0].ended_ns, first.ended_ns) == (800, 1200)  # 400 alone, 400 shared, 400 alone


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_n_flows_end_as_processor_sharing_says(sizes):
    """With b sorted, n flows from one start: T_k = T_(k-1) + (b_k - b_(k-1)) (n - k + 1) / C."""
    env, fabric, link = one_link()
    flows = [fabric.start((link,), num_bytes, "offload") for num_bytes in sizes]
    env.run()
    ordered = [0, *sorted(sizes)]
    ends, time_ns = [], 0
    for k, (before, size) in enumerate(pairwise(ordered)):
        time_ns += (size - before) * (len(sizes) - k)
        ends.append(time_ns)
    assert sorted(flow.ended_ns for flow in flows) == ends


def test_a_full_link_that_others_leave_idle_elsewhere():
    """Two flows over PCIe and one on HBM alone: PCIe limits the two, the third has what they leave."""
    env = Clock()
    fabric = Fabric(env)
    hbm, pcie = fabric.add("hbm", 100 * GB), fabric.add("pcie", 10 * GB)
    over = [fabric.start((pcie, hbm), 1000, "offload") for _ in range(2)]
    alone = fabric.start((hbm,), 9000, "copy")
    assert [flow.bytes_per_s / GB for flow in (*over, alone)] == [5, 5, 90]
    env.run()
    assert [flow.ended_ns for flow in (*over, alone)] == [200, 200, 100]


def test_weight_and_limit():
    env, fabric, link = one_link()
    heavy = fabric.start((link,), 600, "weights", weight=3)
    light = fabric.start((link,), 600, "offload")
    env.run()
    assert (heavy.ended_ns, light.ended_ns) == (800, 1200)

    env, fabric, link = one_link()
    slow = fabric.start((link,), 100, "prefetch", max_bytes_per_s=GB // 10)
    fast = fabric.start((link,), 900, "offload")
    env.run()
    assert (slow.ended_ns, fast.ended_ns) == (1000, 1000)


# Odd flows.


def test_no_bytes_end_now_but_after_the_caller():
    env, fabric, link = one_link()
    ends = []
    flow = fabric.start((link,), 0, "offload", on_end=lambda flow: ends.append(env.now_ns))
    assert flow.ended_ns is None
    assert not ends
    delayed = fabric.start((link,), 0, "offload", latency_ns=50)
    env.run()
    assert (ends, flow.ended_ns, delayed.ended_ns) == ([0], 0, 50)
    assert fabric.use(link)[0].busy_s == 0


def test_a_latency_comes_before_the_first_byte():
    env, fabric, link = one_link()
    early = fabric.start((link,), 300, "offload")
    late = fabric.start((link,), 100, "offload", latency_ns=100)
    assert late.bytes_per_s == 0
    assert fabric.next_change_ns(link) == 100
    env.run()
    assert (late.ended_ns, early.ended_ns) == (300, 400)


def test_a_cancelled_flow_gives_its_share_back_at_once():
    env, fabric, link = one_link()
    gone, stays = (fabric.start((link,), 1000, owner) for owner in ("prefetch", "offload"))

    def cancel():
        fabric.cancel(gone)
        assert stays.bytes_per_s == GB
        assert gone.bytes_per_s == 0

    at(env, 501, cancel)
    env.run()
    assert stays.ended_ns == 1251  # 250.5 bytes across by 501, the other 749.5 alone, rounded up
    assert (gone.cancelled, gone.ended_ns, gone.moved_bytes) == (True, 501, 250)
    fabric.cancel(gone)  # twice is once
    assert fabric.use(link)[1]["prefetch"].bytes_total == 250


def test_a_flow_may_be_cancelled_before_its_first_byte_and_after_its_last():
    env, fabric, link = one_link()
    waiting = fabric.start((link,), 1000, "prefetch", latency_ns=10)
    done = fabric.start((link,), 5, "offload")
    at(env, 5, lambda: fabric.cancel(waiting))
    env.run()
    fabric.cancel(done)
    assert (waiting.moved_bytes, waiting.cancelled, done.cancelled, done.moved_bytes) == (0, True, False, 5)
    assert fabric.next_change_ns(link) is None


def test_a_standing_flow_takes_its_share_and_is_told_what_it_moved():
    env, fabric, link = one_link(100 * GB)
    engine = fabric.hold((link,), "step")
    assert engine.share_of(link) == 1.0
    fabric.start((link,), 1000, "offload", max_bytes_per_s=10 * GB)
    assert engine.share_of(link) == 0.9
    copy = fabric.start(
        (link, link), 2250, "copy"
    )  # twice the traffic per byte: a third of what is left each
    assert engine.share_of(link) == 0.3
    assert copy.share_of(link) == 0.6
    env.run()
    engine.credit(500)
    assert engine.share_of(link) == 1.0
    assert fabric.use(link)[1]["step"].bytes_total == 500
    fabric.cancel(engine)
    assert engine.moved_bytes == 500
    assert fabric.use(link)[0].bytes_total == 500 + 1000 + 2 * 2250


# Order and notification.


def test_ends_at_one_instant_come_in_the_order_of_the_starts_and_before_steps():
    env = Clock()
    fabric = Fabric(env)
    links = [fabric.add(name, GB) for name in "abc"]
    seen = []
    At(env, 100, Priority.STEP_END).callbacks.append(lambda _: seen.append("step"))
    for name, link in zip("xyz", reversed(links), strict=True):
        fabric.start((link,), 100, "offload", on_end=lambda _, name=name: seen.append(name))
    env.run()
    assert seen == ["x", "y", "z", "step"]


def test_when_a_flow_ends_the_others_have_their_new_rates():
    env, fabric, link = one_link()
    rates = []
    fabric.start((link,), 100, "a", on_end=lambda _: rates.append(other.bytes_per_s))
    other = fabric.start((link,), 200, "b")
    env.run()
    assert rates == [GB]


def test_the_next_change_and_the_watchers():
    env = Clock()
    fabric = Fabric(env)
    near, far = fabric.add("near", GB), fabric.add("far", GB)
    changes = []
    near.watch(lambda link: changes.append(env.now_ns))
    assert fabric.next_change_ns(near) is None
    fabric.start((near,), 100, "a")
    fabric.start((near,), 150, "b")
    fabric.start((far,), 10, "c")
    assert (fabric.next_change_ns(near), fabric.next_change_ns(far)) == (200, 10)
    env.run()
    assert changes == [0, 0, 200, 250]


def test_processes_wait_for_flows():
    env, fabric, link = one_link()
    log = []

    def process():
        flow = yield fabric.start((link,), 100, "a").done
        log.append((env.now_ns, flow.cancelled))
        doomed = fabric.start((link,), 100, "a")
        at(env, 150, lambda: fabric.cancel(doomed))
        flow = yield doomed.done
        log.append((env.now_ns, flow.cancelled))
        yield doomed.done
        yield flow.done  # asked after the end: at once
        log.append((env.now_ns, flow is doomed))

    env.process(process())
    env.run()
    assert log == [(100, False), (150, True), (150, True)]


@pytest.mark.parametrize("bandwidth", [0, -1, float("inf"), float("nan")])
def test_bandwidths_that_cannot_be(bandwidth):
    with pytest.raises(ConfigError, match="bandwidth"):
        Fabric(Clock()).add("hbm", bandwidth)


def test_flows_that_cannot_be():
    _, fabric, link = one_link()
    with pytest.raises(ConfigError, match="already"):
        fabric.add("link", 1)
    for path, num_bytes, options in (
        ((), 1, {}),
        ((link,), -1, {}),
        ((link,), 1, {"weight": 0}),
        ((link,), 1, {"max_bytes_per_s": 0}),
        ((link,), 1, {"latency_ns": -1}),
    ):
        with pytest.raises(InvariantError):
            fabric.start(path, num_bytes, "offload", **options)
