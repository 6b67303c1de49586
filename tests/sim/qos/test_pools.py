"""Pools of tiers: nobody starves another beyond its contract, and all requests are served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import ConfigError
from tests.sim.doubles import constant_cost
from tests.sim.engines import run
from tests.sim.qos.tiers import Stepper, contracts, engine, tenants_trace, tier
from workloads.trace import BlockHashes

STEP = 1000
loads = st.lists(
    st.tuples(
        st.integers(0, 40).map(lambda step: step * STEP),
        st.integers(1, 50),
        st.integers(1, 30),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=25,
).map(sorted)
busy_loads = st.lists(
    st.tuples(
        st.integers(0, 12).map(lambda step: step * STEP),
        st.integers(12, 50),
        st.integers(8, 30),
        st.sampled_from([0, 1, 1]),  # one borrows more than the other
    ),
    min_size=10,
    max_size=25,
).map(sorted)
"""So many near each other that pools lend and are asked for it back."""
softs = st.builds(
    lambda share, other, burst, refill: contracts(
        tier("a", share, burst, refill), tier("b", other, "1.25", None)
    ),
    st.sampled_from(["0.5", "0.6"]),
    st.sampled_from(["0.4", "0.5", "0.8"]),
    st.sampled_from(["1.2", "1.5"]),
    st.sampled_from([None, 3.0, 1e5, 1e7]),
)
HARD = contracts(tier("a", "0.6"), tier("b", "0.4"), hard=True)


def ids_of(load):
    """Adversarial prefixes: any two prompts begin with the same blocks."""
    counts = [-(-inputs // 4) for _, inputs, _, _ in load]
    ids = [block for count in counts for block in range(count)]
    return BlockHashes.build(4, counts, ids)


@settings(max_examples=300, deadline=None)
@given(load=loads, what=st.one_of(st.just(HARD), softs), seats=st.integers(2, 8), caching=st.booleans())
def test_all_requests_are_served_and_every_block_is_accounted_for(load, what, seats, caching):
    core = engine(
        tenants_trace(*load),
        what,
        seats=seats,
        blocks=60,
        prefix_caching=caching,
        hashes=ids_of(load) if caching else None,
    )
    stepper = Stepper(core)
    stepper.run()
    assert sorted(stepper.finished) == list(range(len(load)))
    assert core.allocator.used_blocks == 0


@settings(max_examples=200, deadline=None)
@given(load=loads, caching=st.booleans())
def test_hard_isolation_gives_a_tenant_what_it_has_alone(load, caching):
    """Steps of one length, seats and budget enough: a tenant's requests do not see those of another."""

    def outcome(requests):
        trace = tenants_trace(*requests)
        if caching:
            trace = replace(trace, hashes=ids_of(requests))
        done, _ = run(
            trace,
            constant_cost(STEP),
            contracts=HARD,
            max_num_seqs=64,
            max_num_batched_tokens=10_000,
            usable_blocks=50,
            prefix_caching=caching,
        )
        return done.columns

    both = outcome(load)
    for tenant in (0, 1):
        own = [request for request in load if request[3] == tenant]
        if own:
            alone = outcome(own)
            mine = np.array([request[3] == tenant for request in load])
            for name, column in alone.items():
                assert np.array_equal(both[name][mine], column), name


@settings(max_examples=300, deadline=None)
@given(
    load=busy_loads, what=softs, seats=st.integers(4, 8), blocks=st.integers(50, 80), caching=st.booleans()
)
def test_soft_isolation_never_takes_what_is_promised(load, what, seats, blocks, caching):
    """Step by step: who is within its guarantee is not preempted for others, and waits for a step at the most.

    A request that asks for no more than its pool's guarantee leaves, and finds no room, is the next step's first
    concern: it is admitted then, unless its own pool grew meanwhile or the prompt budget was gone.
    """
    core = engine(
        tenants_trace(*load),
        what,
        seats=seats,
        budget=100_000,
        blocks=blocks,
        prefix_caching=caching,
        hashes=ids_of(load) if caching else None,
    )
    allocator, stepper = core.allocator, Stepper(core)
    guarantees = [amounts.guarantee for amounts in what.amounts(blocks)]
    waiting: dict[int, int] = {}  # request that lacked what its pool was promised -> its need
    preempt = core._preempt

    def checked_preempt(seq, now_ns):
        pool = allocator.pools[seq.kv.lane]
        assert pool.beyond or pool.seated_beyond or not pool.within(pool.wanted)
        preempt(seq, now_ns)

    core._preempt = checked_preempt
    for _ in range(10_000):
        going = stepper.step()
        running = {seq.index for seq in core.running} | set(stepper.finished)
        for index, (lane, need) in waiting.items():
            beyond = stepper.used_blocks[lane] + need > guarantees[lane]  # those that run grew meanwhile
            assert index in running or beyond or index in stepper.preempted
        waiting = {}
        for lane in core.queue.lanes:
            pool = allocator.pools[lane.index]
            if pool.owed is not None and lane.claim is not None and not lane.resumed:
                waiting[lane.claim.index] = (lane.index, pool.owed)
        if not going:
            break
    assert sorted(stepper.finished) == list(range(len(load)))


def test_a_lender_gets_its_blocks_back_in_one_step():
    """40 blocks, half each, and a wants all of its own while b has most.

    step 0   b: 5 prompts of 6 blocks, of which 10 are borrowed
    step 1   b grows to 5 x 7 blocks; a has arrived with a prompt of 20 blocks, and 5 are free: it is owed them
    step 2   the latest three of b have given way, 21 blocks; a runs
    """
    load = [(0, 24, 20, 1)] * 5 + [(1000, 78, 3, 0)]
    what = contracts(tier("a", "0.5", "2"), tier("b", "0.5", "2"))
    core = engine(tenants_trace(*load), what, budget=1000, blocks=40)
    stepper = Stepper(core)
    stepper.step()
    assert core.allocator.pool_blocks() == (0, 30)
    stepper.step()
    assert core.allocator.pool_blocks() == (0, 35)
    stepper.step()
    assert stepper.preempted == [4, 3, 2]
    assert [seq.index for seq in core.running] == [0, 1, 5]
    assert core.allocator.pool_blocks() == (20, 14)
    stepper.run()
    assert sorted(stepper.finished) == [0, 1, 2, 3, 4, 5]


def test_a_lender_gets_its_seats_back():
    load = [(0, 4, 50, 1)] * 6 + [(3000, 4, 5, 0)] * 2
    what = contracts(tier("a", "0.5", "2"), tier("b", "0.5", "2"))
    core = engine(tenants_trace(*load), what, seats=4, blocks=400)
    stepper = Stepper(core)
    while stepper.now_ns < 3000:
        stepper.step()
    assert [seq.index for seq in core.running] == [0, 1, 2, 3]
    for _ in range(3):
        stepper.step()
    assert [seq.index for seq in core.running] == [0, 1, 6, 7]
    assert stepper.preempted == [3, 2]


def test_tokens_bound_how_fast_a_tier_borrows():
    """One block is borrowed for each token: ten at once (the burst), then two a second."""
    load = [(0, 4, 1, 1)] + [(0, 36, 40, 0)] * 300
    what = contracts(tier("a", "0.5", "1.5", 2.0), tier("b", "0.5"))
    core = engine(tenants_trace(*load), what, seats=64, budget=10_000, blocks=40, block_size=4)
    stepper = Stepper(core, step_ns=10_000_000)
    level, taken, before = 20, 0, 0
    while stepper.now_ns < 20_000_000_000:
        assert stepper.step()
        used = core.allocator.pool_blocks()[0]
        taken += max(used - max(before, level), 0)
        before = used
        assert taken <= 10 + 2 * stepper.now_ns / 1e9
    assert taken >= 2 * 20 - 10  # and they are used, but for what is left in the bucket


def test_a_tenant_never_finds_the_prefix_of_another():
    load = [(STEP * i, 48, 2, i % 2) for i in range(10)]
    for what in (None, HARD, contracts(tier("a", "0.5", "2"), tier("b", "0.5", "2"))):
        trace = replace(tenants_trace(*load), hashes=ids_of(load))
        done, _ = run(trace, constant_cost(STEP * 10), contracts=what, usable_blocks=400, prefix_caching=True)
        cached = done.columns["cached_tokens"]
        assert cached[:2].tolist() == [0, 0]  # the first of each finds nothing
        assert (cached[2:] > 0).all()


@settings(max_examples=150, deadline=None)
@given(
    load=loads,
    what=st.one_of(st.none(), st.just(HARD), softs),
    data=st.data(),
)
def test_hits_are_those_of_a_cluster_without_the_other_tenants_content(load, what, data):
    """Whatever ids prompts carry, replacing those of another tenant by ids of its own changes nothing."""
    counts = [-(-inputs // 4) for _, inputs, _, _ in load]
    depth = [data.draw(st.integers(0, count)) for count in counts]

    def outcome(offset):
        ids = []
        for i, (count, shared) in enumerate(zip(counts, depth, strict=True)):
            base = offset * load[i][3]
            ids += [base + b if b < shared else 10**6 * (i + 1) + b for b in range(count)]
        trace = replace(tenants_trace(*load), hashes=BlockHashes.build(4, counts, ids))
        done, _ = run(
            trace, constant_cost(STEP), contracts=what, usable_blocks=60, max_num_seqs=4, prefix_caching=True
        )
        return done.columns

    equal, apart = outcome(0), outcome(500)
    for name, column in equal.items():
        assert np.array_equal(column, apart[name]), name


def test_shares_that_are_too_small_are_named():
    trace = tenants_trace((0, 4, 1, 0))
    with pytest.raises(ConfigError, match=r"qos.tiers.b.share: 0.01 of 40 KV blocks is not one block"):
        engine(trace, contracts(tier("a", "0.9"), tier("b", "0.01")))
    with pytest.raises(ConfigError, match=r"engine.max_num_seqs: 1 leaves no seat for each of the 2 tiers"):
        engine(trace, contracts(tier("a", "0.5"), tier("b", "0.5")), seats=1)
