"""KV in host memory: a naive page cache decides every read and every byte the same."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InvariantError
from sim.kv.access import Full
from sim.kv.access.reads import Reads
from sim.kv.paging.host_paging import HostPaging
from sim.kv.paging.page_cache import PageCache
from sim.kv.prefetch import NoPrefetch
from tests.sim.kv.naive_pages import BLOCK, GROUPS, Naive
from tests.sim.kv.prefetchers import Scripted


class Scattered:
    """Reads any pages, the query's own among them."""

    groups = GROUPS
    block_size = BLOCK

    def reads(self, sequence: int, context_tokens: int) -> Reads:
        rng = np.random.default_rng([sequence, context_tokens])
        mask = rng.random((GROUPS, -(-context_tokens // BLOCK))) < 0.5
        mask[:, -1] = True
        return Reads.of_mask(mask)

    def known(self, sequence: int, context_tokens: int) -> Reads:
        return Reads.nothing()


pages_named = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(-1, 8)), max_size=14)
rounds = st.lists(
    st.tuples(
        st.sets(st.integers(0, 4), min_size=1),  # sequences of the step
        st.lists(st.integers(0, 4), max_size=2),  # sequences that end after it
        pages_named,
        pages_named,
        st.floats(0, 1),  # share of the queue that comes
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(rounds, st.integers(1, 40), st.integers(1, 7), st.integers(0, 12))
def test_every_read_and_every_byte_is_as_in_a_naive_page_cache(rounds, capacity, page_bytes, prompt):
    script = Scripted()
    access = Scattered()
    paging = HostPaging(access, script, capacity=capacity, page_bytes=page_bytes)
    naive = Naive(capacity, page_bytes)
    context: dict[int, int] = {}
    for batch, ended, fetch, keep, share in rounds:
        for key in batch:
            context[key] = context.get(key, prompt) + 1
        sequences = [(key, context[key]) for key in sorted(batch)]
        naive.batch = batch
        assert paging.begin_step(sequences) == naive.begin_step(access, sequences)
        script.fetch, script.keep = fetch, keep
        queued = paging.plan_prefetches()
        assert queued == naive.plan(fetch, keep)
        for come in (round(queued * share / 2), round(queued * share) - round(queued * share / 2)):
            paging.arrived(come)
            naive.arrived(come)
        for key in ended:
            context.pop(key, None)
            paging.end(key)
            naive.end(key)
        assert asdict(paging.account) == asdict(naive.account)
        assert paging.account.imbalance_bytes == 0
        assert paging.account.reads == paging.account.hits + paging.account.late + paging.account.demanded
    for key in range(5):
        paging.end(key)
    account = paging.account
    assert account.unread_bytes == account.in_flight_bytes == 0
    assert account.issued_bytes == account.useful_bytes + account.late_bytes + account.wasted_bytes


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), unique=True, max_size=8), max_size=20), st.integers(1, 10))
def test_without_a_prefetcher_it_is_an_lru_cache(steps, capacity):
    class OneGroup:
        groups = 1
        block_size = BLOCK

        def reads(self, sequence: int, context_tokens: int) -> Reads:
            blocks = np.array(sorted(steps[context_tokens - 48]), dtype=np.int64)
            return Reads(0 * blocks, blocks, np.ones(blocks.size))

    access = OneGroup()
    paging = HostPaging(access, NoPrefetch().build(access), capacity=capacity, page_bytes=1)
    lru = OrderedDict.fromkeys(range(12 - min(capacity, 12), 12))  # of the prompt, what was written last
    hits = 0
    for step, blocks in enumerate(steps):
        context = 48 + step
        for new in range(len(lru) and -(-(context - 1) // BLOCK), -(-context // BLOCK)):
            if new >= 12:
                if len(lru) == capacity:
                    lru.popitem(last=False)
                lru[new] = None
        paging.begin_step([(0, context)])
        there = [block for block in sorted(blocks) if block in lru]
        hits += len(there)
        for block in there + [block for block in sorted(blocks) if block not in there]:
            if block in lru:
                lru.move_to_end(block)
                continue
            if len(lru) == capacity:
                lru.popitem(last=False)
            lru[block] = None
        assert paging.account.hits == hits


def test_what_a_prefetch_pushes_out_and_is_wanted_again_is_told():
    class InTurn:
        groups = 1
        block_size = BLOCK
        asked = ([0, 1], [0])

        def reads(self, sequence: int, context_tokens: int) -> Reads:
            blocks = np.array(self.asked[context_tokens - 16], dtype=np.int64)
            return Reads(0 * blocks, blocks, np.ones(blocks.size))

    script = Scripted()
    paging = HostPaging(InTurn(), script, capacity=2, page_bytes=10)
    assert paging.begin_step([(0, 16)]) == 20  # of 4 blocks written, the last two were there
    script.fetch = [(0, 0, 3)]
    assert paging.plan_prefetches() == 10
    paging.arrived(10)
    assert paging.begin_step([(0, 17)]) == 10
    assert paging.account.evicting_bytes == 10
    assert paging.account.unread_bytes == 0
    assert paging.account.wasted_bytes == 10  # by block 0 or by the new block 4, whichever came second


def test_a_driver_that_miscounts_is_told():
    access = Full().build(1, BLOCK, 0)
    paging = HostPaging(access, NoPrefetch().build(access), capacity=4, page_bytes=10)
    with pytest.raises(InvariantError, match="a step that began"):
        paging.plan_prefetches()
    with pytest.raises(InvariantError, match="1 bytes arrived of 0 queued"):
        paging.arrived(1)
    paging.begin_step([(0, 20)])
    with pytest.raises(InvariantError, match="sequence 0 shrinks from 5 to 4 blocks"):
        paging.begin_step([(0, 16)])
    with pytest.raises(InvariantError, match="room for 0 pages"):
        HostPaging(access, NoPrefetch().build(access), capacity=0, page_bytes=10)


def test_the_order_of_use_survives_many_uses():
    """More uses than the log is long at first: it is compacted, and who was used last stays so."""
    cache = PageCache(10)
    cache.reserve(100)
    cache.insert(np.arange(10))
    for step in range(3000):
        cache.touch(np.array([step % 9, (step + 4) % 9]))
    with pytest.raises(InvariantError, match="do not fit"):
        cache.insert(np.array([50]))
    latest_first = OrderedDict.fromkeys((step + d) % 9 for step in range(2999, 2900, -1) for d in (4, 0))
    expected = [9, *reversed(latest_first)]
    assert cache.evict(10).tolist() == expected
