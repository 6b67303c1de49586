"""How many transfers a second links take, beside SimPy's own means in the same run.

`pytest tests/benchmarks/bench_link.py`; `extra_info` says transfers per second. The yardsticks share nothing: a
Store hands one item over, a Container one amount, a Resource serves one at a time. A fluid model of the kind that
SimPy's examples suggest, which touches every flow at every change, is there for scale.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import simpy

from sim.engine.clock import At, Clock, Priority
from sim.links.fabric import Fabric

TRANSFERS = 20_000
IN_FLIGHT = pytest.mark.parametrize("in_flight", [1, 10, 100])


def size(index):
    """Bytes, spread so that ends do not fall together."""
    return 1_000_000 + index * 7919 % 1_000_003


def measure(benchmark, run, transfers=TRANSFERS):
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    benchmark.extra_info["transfers_per_s"] = round(transfers / benchmark.stats.stats.median)


def replay(paths_of, in_flight, transfers=TRANSFERS, limits=(None,)):
    """Keep so many in flight: when one ends, another starts on the same path."""
    fabric = Fabric(Clock())
    paths, left = paths_of(fabric), transfers - in_flight

    def start(index):
        fabric.start(
            paths[index % len(paths)],
            size(index),
            "offload",
            max_bytes_per_s=limits[index % len(limits)],
            on_end=again,
        )

    def again(flow):
        nonlocal left
        if left > 0:
            left -= 1
            start(left)

    for index in range(in_flight):
        start(index)
    fabric.env.run()
    assert sum(link.total.bytes_total for link in fabric.links.values()) > transfers * 1_000_000


def host_to_hbm(fabric):
    return [(fabric.add("pcie", 64e9), fabric.add("hbm", 4.8e12))]


def four_ways(fabric):
    """Load, offload, from disk, and to a neighbour, all over one HBM beside a running engine."""
    names = {"hbm": 4.8e12, "h2d": 64e9, "d2h": 64e9, "disk": 7e9, "nvlink": 450e9}
    hbm, h2d, d2h, disk, nvlink = (fabric.add(name, rate) for name, rate in names.items())
    fabric.hold((hbm,), "step")
    return [(h2d, hbm), (hbm, d2h), (disk, h2d, hbm), (hbm, nvlink)]


@pytest.mark.benchmark(group="links")
@IN_FLIGHT
def test_one_path(benchmark, in_flight):
    measure(benchmark, lambda: replay(host_to_hbm, in_flight))


@pytest.mark.benchmark(group="links")
@IN_FLIGHT
def test_four_paths_and_a_standing_flow(benchmark, in_flight):
    measure(benchmark, lambda: replay(four_ways, in_flight))


@pytest.mark.benchmark(group="links")
def test_100_flows_no_two_alike(benchmark):
    """The worst case: every flow has a limit of its own, so that each is a class."""
    limits = [10**9 + 1000 * i for i in range(100)]
    measure(benchmark, lambda: replay(host_to_hbm, 100, 2_000, limits), 2_000)


@pytest.mark.benchmark(group="links")
@IN_FLIGHT
def test_yardstick_store(benchmark, in_flight):
    def run():
        env = simpy.Environment()
        store = simpy.Store(env)

        def put():
            for _ in range(TRANSFERS // in_flight):
                yield env.timeout(1)
                yield store.put(1)

        def get():
            for _ in range(TRANSFERS // in_flight):
                yield store.get()

        for _ in range(in_flight):
            env.process(put())
            env.process(get())
        env.run()

    measure(benchmark, run)


@pytest.mark.benchmark(group="links")
@IN_FLIGHT
@pytest.mark.parametrize("kind", ["container", "resource"])
def test_yardstick_holding(benchmark, in_flight, kind):
    """Take the link, or a part of it, for a time that was fixed at the start."""

    def run():
        env = simpy.Environment()
        container = simpy.Container(env, capacity=in_flight, init=in_flight)
        resource = simpy.Resource(env, capacity=in_flight)

        def holding_container():
            for _ in range(TRANSFERS // in_flight):
                yield container.get(1)
                yield env.timeout(1)
                yield container.put(1)

        def holding_resource():
            for _ in range(TRANSFERS // in_flight):
                with resource.request() as request:
                    yield request
                    yield env.timeout(1)

        for _ in range(in_flight):
            env.process(holding_container() if kind == "container" else holding_resource())
        env.run()

    measure(benchmark, run)


@pytest.mark.benchmark(group="links")
@IN_FLIGHT
@pytest.mark.parametrize("number", [float, Fraction])
def test_yardstick_every_flow_at_every_change(benchmark, in_flight, number):
    """One link, equal shares, no owners, no history: settles every flow at every start and end."""
    transfers = 2_000

    def run():
        env, flows, left, since = Clock(), {}, transfers, 0

        def change():
            nonlocal since, left
            moved = number(64 * (env.now_ns - since)) / max(len(flows), 1)
            since = env.now_ns
            for flow in flows:
                flows[flow] -= moved
            for flow in [flow for flow, bytes_left in flows.items() if bytes_left <= 1e-6]:
                del flows[flow]
            while len(flows) < in_flight and left:
                left -= 1
                flows[left] = number(size(left))
            if flows:
                delay = -(-min(flows.values()) * len(flows) // 64)
                At(env, int(delay), Priority.FLOW_END).callbacks.append(lambda _: change())

        change()
        env.run()

    measure(benchmark, run, transfers)
