"""Max-min rates against what defines them, and against water that rises in small steps."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.links.sharing import Demand, max_min_rates

links = st.lists(st.integers(1, 1000), min_size=1, max_size=5)


@st.composite
def networks(draw):
    bandwidth = draw(links)
    paths = st.lists(st.integers(0, len(bandwidth) - 1), min_size=1, max_size=4).map(tuple)
    demand = st.builds(
        Demand, paths, st.integers(1, 4), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 500))
    )
    return dict(enumerate(bandwidth)), draw(st.lists(demand, min_size=1, max_size=7))


def load(demands, rates, link):
    return sum(d.flows * rate * d.path.count(link) for d, rate in zip(demands, rates, strict=True))


@settings(max_examples=500, deadline=None)
@given(networks())
def test_every_flow_has_its_limit_or_a_bottleneck(network):
    """Feasible, and each flow is at its limit or on a full link where no flow has more per weight: that is max-min."""
    bandwidth, demands = network
    rates = max_min_rates(bandwidth, demands)
    full = {link for link in bandwidth if load(demands, rates, link) == bandwidth[link]}
    assert all(load(demands, rates, link) <= bandwidth[link] for link in bandwidth)
    for demand, rate in zip(demands, rates, strict=True):
        assert rate > 0
        level = rate / demand.weight
        at_limit = rate == demand.max_bytes_per_s
        bottleneck = any(
            level >= max(r / d.weight for d, r in zip(demands, rates, strict=True) if link in d.path)
            for link in full.intersection(demand.path)
        )
        assert at_limit or bottleneck
        assert demand.max_bytes_per_s is None or rate <= demand.max_bytes_per_s


@settings(max_examples=15, deadline=None)
@given(networks())
def test_water_that_rises_in_small_steps_comes_to_the_same(network):
    """An oracle that knows no levels: every flow grows by its weight's share of a drop while it still can."""
    bandwidth, demands = network
    flows = [d for d in demands for _ in range(d.flows)]
    drop = min(bandwidth.values()) / 4000
    water, growing = [0.0] * len(flows), set(range(len(flows)))
    used = dict.fromkeys(bandwidth, 0.0)
    while growing:
        for i in sorted(growing):
            flow = flows[i]
            more = drop * flow.weight / 5
            limit = flow.max_bytes_per_s
            over = any(used[k] + more * flow.path.count(k) > bandwidth[k] for k in flow.path)
            if over or (limit is not None and water[i] + more > limit):
                growing.discard(i)
                continue
            water[i] += more
            for link in flow.path:
                used[link] += more
    rates = max_min_rates(bandwidth, demands)
    exact = [float(rate) for d, rate in zip(demands, rates, strict=True) for _ in range(d.flows)]
    # A link is full when a drop no longer fits; each such error may pass on to the links that fill later.
    slack = drop * 4 * len(flows) * len(bandwidth) ** 2
    assert water == pytest.approx(exact, abs=slack)


@settings(max_examples=200, deadline=None)
@given(networks(), st.randoms())
def test_the_order_of_the_flows_does_not_matter(network, random):
    bandwidth, demands = network
    shuffled = list(range(len(demands)))
    random.shuffle(shuffled)
    rates = max_min_rates(bandwidth, demands)
    again = max_min_rates(bandwidth, [demands[i] for i in shuffled])
    assert [rates[i] for i in shuffled] == again


@settings(max_examples=200, deadline=None)
@given(networks(), st.integers(2, 1000))
def test_rates_scale_with_the_bandwidths(network, factor):
    bandwidth, demands = network
    scaled = [
        d._replace(max_bytes_per_s=None if d.max_bytes_per_s is None else d.max_bytes_per_s * factor)
        for d in demands
    ]
    rates = max_min_rates({k: b * factor for k, b in bandwidth.items()}, scaled)
    assert rates == [rate * factor for rate in max_min_rates(bandwidth, demands)]


def test_the_textbook_line():
    """One long flow over two links, short ones beside it on each."""
    rates = max_min_rates(
        {0: 12, 1: 30}, [Demand((0, 1), 1, 1, None), Demand((0,), 2, 1, None), Demand((1,), 1, 1, None)]
    )
    assert rates == [4, 4, 26]


def test_weights_limits_and_a_link_crossed_twice():
    assert max_min_rates({0: 10}, [Demand((0,), 1, 3, None), Demand((0,), 2, 1, None)]) == [6, 2]
    assert max_min_rates({0: 10}, [Demand((0,), 1, 1, 2), Demand((0,), 3, 1, None)]) == [2, Fraction(8, 3)]
    assert max_min_rates({0: 10}, [Demand((0, 0), 1, 1, None)]) == [5]
    assert max_min_rates({0: 9}, [Demand((0, 0), 1, 1, None), Demand((0,), 1, 1, None)]) == [3, 3]
