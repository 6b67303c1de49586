"""A policy with an end: its order, and the end of `ttl`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.kv.eviction.expiring import ExpiringEviction
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.ttl import Ttl

uses = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=60)


@given(uses)
def test_victims_are_those_of_the_order_and_expiry_that_of_ttl(history):
    both = ExpiringEviction(Lfu().build(8), 5.0)
    order, end = Lfu().build(8), Ttl(ttl_s=5.0).build(8)
    now, cached = 0, set()

    def remove(blocks):
        for policy in (both, order, end):
            policy.removed(blocks)
        cached.difference_update(blocks)

    for block, seconds in history:
        now += seconds * 10**9
        expired = both.expired(now)
        assert expired == end.expired(now)
        remove(expired)
        if block in cached:
            for policy in (both, order, end):
                policy.accessed([block], [0], now)
            continue
        if len(cached) == 4:
            victims = both.victims(1)
            assert victims == order.victims(1)
            remove(victims)
        for policy in (both, order, end):
            policy.inserted([block], [0], now)
        cached.add(block)
