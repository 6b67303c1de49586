"""Tiers below HBM: what is found where, against a naive model; when it pays to bring it back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.kv.allocators.decision import Claim
from sim.kv.allocators.tiered_paged import TieredPagedAllocator
from sim.kv.eviction.lru import Lru
from sim.kv.eviction.ttl import Ttl
from sim.kv.tiers.crossover import Crossover
from sim.kv.tiers.lower import LowerTiers
from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute
from sim.kv.tiers.reload import Queued, Reload
from sim.kv.tiers.store import TierStore
from sim.kv.tiers.swapping import Swapping
from tests.sim.doubles import AffineCost
from tests.sim.kv.naive_tiers import NaiveTiers
from tests.sim.tiers import BLOCK, BLOCK_BYTES, tier_setup

actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.lists(st.integers(0, 1), min_size=1, max_size=7), st.integers(1, 9)),
        st.tuples(st.just("close"), st.integers(0, 9), st.just(0)),
    ),
    min_size=1,
    max_size=60,
)


def deliver(allocator):
    """Everything that was asked for is there."""
    while allocator.transfers:
        taken, allocator.transfers = allocator.transfers, []
        for transfer in taken:
            allocator.landed(transfer)


@settings(max_examples=400, deadline=None)
@given(
    actions=actions,
    blocks=st.integers(4, 20),
    host=st.integers(1, 30),
    disk=st.sampled_from([0, 0, 3, 40]),
    back=st.booleans(),
)
def test_what_is_found_where_equals_a_naive_model(actions, blocks, host, disk, back):
    """Prompts are paths in a tree; each is held for a while."""
    setup = tier_setup(host, disk, write="back" if back else "through", reload="always")
    allocator = TieredPagedAllocator(blocks, BLOCK, setup)
    naive = NaiveTiers(blocks, host, disk, back=back)
    open_ones = []
    for number, (action, what, own) in enumerate(actions):
        if action == "close":
            if open_ones:
                holding, held, contents = open_ones.pop(what % len(open_ones))
                allocator.release(holding)
                deliver(allocator)
                naive.release(held)
        else:
            path = [int("1" + "".join(map(str, what[: depth + 1])), 2) for depth in range(len(what))]
            tokens = BLOCK * len(path) + own
            contents = [*path, *range(-100 * number - 50, -100 * number - 50 + own // BLOCK)]
            claim = Claim(number, tokens, tokens, contents=np.array(contents, dtype=np.int64))
            found = allocator.find_prefix(claim)
            before = allocator.account.from_disk
            expected = naive.open(contents, tokens)
            assert allocator.can_hold(claim) == (expected is not None)
            if expected is None:
                continue
            held, in_hbm, from_host, from_disk = expected
            assert found == in_hbm * BLOCK
            assert claim.loading_tokens == (from_host + from_disk) * BLOCK
            holding = allocator.open(claim)
            assert allocator.account.from_disk - before == from_disk
            assert allocator.is_loading(holding) == (from_host + from_disk > 0)
            deliver(allocator)
            assert not allocator.is_loading(holding)
            known = len(held)
            assert allocator.extend(holding, tokens)
            held += naive.take(-(-tokens // BLOCK) - known)
            deliver(allocator)
            naive.store(held, contents, known, len(contents))
            allocator.begin_step()
            deliver(allocator)
            naive.copy(contents)
            open_ones.append((holding, held, contents))
        assert allocator.lower.host.contents == set(naive.host)
        if disk:
            assert allocator.lower.disk.contents == set(naive.disk)
        assert allocator.free_blocks == len(naive.free)
        allocator.check_integrity([holding for holding, _, _ in open_ones])


def test_a_store_finds_what_has_been_written_and_keeps_what_is_read():
    store = TierStore(3, Lru().build(3))
    assert store.reserve([1, 2, 3, 4], [0, 1, 2, 3], 10) == (3, [], [])
    assert 1 not in store
    assert store.knows(1)
    store.written([1, 2, 3], 20)
    assert 1 in store
    store.read([1], 30)
    store.read([1], 30)
    assert store.reserve([5, 6, 7], [0, 1, 2], 40) == (2, [2, 3], [1, 2])
    store.written([5, 6], 50)
    store.done([1], 60)
    assert store.reserve([8, 9, 10], [0, 1, 2], 70) == (2, [5, 6], [0, 1])  # 1 is still read
    store.done([1], 80)
    assert store.used_to(100) == 3 * (100 - 10)
    assert store.peak_blocks == 3
    store.check_integrity()


def test_expired_content_is_not_found_and_makes_room():
    host = TierStore(2, Ttl(ttl_s=1e-6).build(2))
    lower = LowerTiers(host)
    host.reserve([1, 2], [0, 1], 0)
    host.written([1, 2], 0)
    assert lower.leading_run([1, 2], 1000) == [False, False]
    assert lower.leading_run([1, 2], 1001) == []
    assert host.used_blocks == 2
    count, gone, _ = host.reserve([3], [0], 1500)
    assert (count, gone) == (1, [])
    assert host.used_blocks == 1


def test_what_leaves_host_memory_goes_to_disk_as_far_as_the_buffer_goes():
    lower = LowerTiers(TierStore(32, Lru().build(32)), TierStore(100, Lru().build(100)))
    lower.host.reserve(list(range(32)), list(range(32)), 0)
    lower.host.written(list(range(32)), 0)
    count, demotion = lower.reserve([100, 101, 102], [0, 1, 2], 5)
    assert count == 3
    assert demotion.contents == [0, 1]  # a 16th of 32
    assert lower.dropped == 1
    assert lower.leading_run([0], 6) == []
    lower.demoted(demotion, 10)
    assert lower.leading_run([0, 3], 11) == [True, False]
    lower.check_integrity()


def test_times_over_links():
    rates = Rates(2e9, 1e9, 0.5e9, latency_ns=100)
    assert rates.load_ns(2000) == 100 + 1000
    assert rates.load_ns(2000, queued_bytes=2000) == 100 + 2000
    assert rates.load_ns(2000, 1000) == 100 + 2000  # the disk takes longer
    assert rates.load_ns(6000, 1000) == 100 + 3500  # both over one link
    assert rates.load_ns(0, 1000, 5000, 4000) == 100 + 10_000
    assert rates.load_ns(0) == 0
    assert rates.offload_ns(500) == 100 + 500
    assert rates.offload_ns(0) == 0


PROMPT = Recompute(AffineCost(base_ns=1000, per_prefill_token_ns=10, per_prefill_context_ns=1), 64)


def test_a_prompt_is_computed_in_chunks():
    assert PROMPT.prompt_ns(100, 0) == (1000 + 640) + (1000 + 360 + 64)
    assert PROMPT.prompt_ns(100, 90) == 1000 + 100 + 90
    assert PROMPT.prompt_ns(100, 100) == 0


def reload(policy="cheaper", load=1e9, disk=1e9, latency=0):
    return Reload(policy, Rates(load, load, disk, latency), PROMPT, BLOCK, BLOCK_BYTES)


def test_reload_is_chosen_where_it_is_faster():
    """A block saves 40 ns less what its context costs the rest: 4 ns. Loading takes 100 ns, or 10."""
    assert reload(load=1e9).blocks(41, 0, [False] * 10, Queued()) == 0
    assert reload(load=1e10).blocks(41, 0, [False] * 10, Queued()) == 10
    assert reload("always").blocks(41, 0, [False] * 10, Queued()) == 10
    assert reload("never", load=1e12).blocks(41, 0, [False] * 10, Queued()) == 0
    assert reload(load=1e10).blocks(41, 0, [], Queued()) == 0
    assert (
        reload(load=1e10, latency=255).blocks(41, 0, [False] * 10, Queued()) == 10
    )  # saves 400 - 40, loads 100
    assert reload(load=1e10, latency=265).blocks(41, 0, [False] * 10, Queued()) == 0
    assert reload(load=1e10).blocks(41, 0, [False] * 10, Queued(2590)) == 10
    assert reload(load=1e10).blocks(41, 0, [False] * 10, Queued(2610)) == 0


def test_a_slow_disk_cuts_the_run_where_it_begins():
    found = [False] * 5 + [True] * 5
    assert reload(load=1e10, disk=1e10).blocks(41, 0, found, Queued()) == 10
    assert reload(load=1e10, disk=1e9).blocks(41, 0, found, Queued()) == 5
    assert reload(load=1e9, disk=1e9).blocks(41, 0, found, Queued()) == 0


@settings(max_examples=200, deadline=None)
@example(run=[False] * 7 + [True] * 2, load=1e10, disk=1e9, latency=0)
@example(run=[True] * 2 + [False] * 9, load=1e10, disk=1e9, latency=0)
@given(
    run=st.lists(st.booleans(), max_size=12),
    load=st.sampled_from([1e9, 3e9, 1e10]),
    disk=st.sampled_from([1e9, 3e9]),
    latency=st.integers(0, 500),
)
def test_no_other_cut_is_faster(run, load, disk, latency):
    """For a cost that is linear per token: places between tiers, and where the other link counts, are enough."""
    chooser = reload(load=load, disk=disk, latency=latency)
    tokens = len(run) * BLOCK + 1
    chosen = chooser.blocks(tokens, 0, run, Queued())
    times = [chooser._through_ns(tokens, 0, run[:cut], Queued()) for cut in range(len(run) + 1)]
    assert times[chosen] == min(times)


def test_swapping_is_chosen_where_the_way_out_and_back_is_faster():
    fast, slow = Rates(1e10, 1e10), Rates(1e9, 1e9)
    for rates, cheaper in ((fast, True), (slow, False)):
        assert Swapping("cheaper", rates, PROMPT, BLOCK, BLOCK_BYTES).pays(42, 10, 10) is cheaper
        assert Swapping("swap", rates, PROMPT, BLOCK, BLOCK_BYTES).pays(42, 10, 10)
        assert not Swapping("recompute", rates, PROMPT, BLOCK, BLOCK_BYTES).pays(42, 10, 10)
    assert not Swapping("swap", fast, PROMPT, BLOCK, BLOCK_BYTES).pays(3, 0, 0)
    half = Rates(5e9, 5e9)  # 200 ns each way against 360: what is below already need not go out
    assert not Swapping("cheaper", half, PROMPT, BLOCK, BLOCK_BYTES).pays(42, 10, 10)
    assert Swapping("cheaper", half, PROMPT, BLOCK, BLOCK_BYTES).pays(42, 10, 0)


def crossover(load, disk=None, latency=0, per_context=0):
    cost = AffineCost(base_ns=1000, per_prefill_token_ns=10, per_prefill_context_ns=per_context)
    return Crossover(Rates(load, load, disk, latency), Recompute(cost, 1 << 20), BLOCK, BLOCK_BYTES)


def test_reload_pays_from_the_context_on_that_makes_up_for_the_latency():
    """Closed form: b blocks save 40 b ns, and take latency + 10 b: from latency / 30 on."""
    assert crossover(1e10, latency=3000).pays(10_000) == [(101, 10_000)]
    assert crossover(1e10, latency=0).pays(10_000) == [(1, 10_000)]
    assert crossover(1e9, latency=0).pays(10_000) == []
    assert crossover(1e10, 1e9, latency=3000).pays(10_000, disk=True) == []
    assert crossover(1e10, latency=3000).reload_ns(10) == 3000 + 100 + 1010
    assert crossover(1e10, latency=3000).recompute_ns(10) == 1000 + 410


def test_a_slow_link_pays_for_long_contexts_where_computing_is_superlinear():
    """A chunk of 64 on c tokens costs 640 + c: n tokens about 10 n + n^2 / 128 - n / 2, and loading them 26 n."""
    cost = AffineCost(base_ns=0, per_prefill_token_ns=10, per_prefill_context_ns=1)
    slow = Crossover(Rates(1e9, 1e9), Recompute(cost, 64), BLOCK, BLOCK_BYTES)
    ((first, last),) = slow.pays(5000)
    assert last == 5000
    assert first * BLOCK == pytest.approx(128 * 16.5, rel=0.05)
    for blocks in (first - 1, first):
        assert (slow.reload_ns(blocks) < slow.recompute_ns(blocks)) == (blocks == first)
