"""Prefetchers on a cache of KV pages: what must hold for each, and who is the better one."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kv.access import Full, SlidingWindow, TopK
from sim.kv.paging.account import PagingAccount
from sim.kv.paging.host_paging import HostPaging
from sim.kv.prefetch import Oracle, Scheduled
from tests.sim.kv.naive_pages import BLOCK
from tests.sim.kv.prefetchers import POLICIES


def drive(access, policy, *, capacity, sequences=3, steps=25, prompt=90, budget=None) -> list[PagingAccount]:
    """Account of each step alone; `budget` bytes of the queue come in a step, by default all."""
    paging = HostPaging(access, policy.build(access), capacity=capacity, page_bytes=8)
    accounts, before = [], PagingAccount()
    for step in range(steps):
        paging.begin_step([(key, prompt + 13 * key + step) for key in range(sequences)])
        queued = paging.plan_prefetches()
        paging.arrived(queued if budget is None else min(queued, budget))
        assert paging.account.imbalance_bytes == 0
        after = PagingAccount(**asdict(paging.account))
        accounts.append(
            PagingAccount(
                *(b - a for a, b in zip(asdict(before).values(), asdict(after).values(), strict=True))
            )
        )
        before = after
    return accounts


def most_read(access, *, sequences=3, steps=26, prompt=90) -> int:
    return max(
        sum(access.reads(key, prompt + 13 * key + step).block.size for key in range(sequences))
        for step in range(steps)
    )


@pytest.mark.parametrize("pattern", [Full(), SlidingWindow(window_tokens=40, sink_tokens=5)])
def test_scheduled_never_waits_where_two_steps_fit_and_bandwidth_suffices(pattern):
    access = pattern.build(4, BLOCK, 0)
    accounts = drive(access, Scheduled(), capacity=2 * most_read(access))
    assert sum(account.blocking_bytes for account in accounts[1:]) == 0
    assert sum(account.reads for account in accounts) > 0


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [Full(), SlidingWindow(window_tokens=40), TopK(churn=0.2), TopK(fraction=0.3, churn=0.05)]
    ),
    st.sampled_from(POLICIES),
    st.integers(1, 260),
)
def test_nobody_hits_more_than_who_knows_what_comes(pattern, policy, capacity):
    """With bandwidth to spare, all that fits of the next step is there: more than fits cannot be.

    Told of steps that open no block, since pages just written are there for everybody.
    """
    access = pattern.build(4, BLOCK, 0)
    theirs = drive(access, policy, capacity=capacity)
    best = drive(access, Oracle(), capacity=capacity)
    opening = [any((90 + 13 * key + step) % BLOCK == 1 for key in range(3)) for step in range(25)]
    assert opening.count(False) > 5
    for account, bound, opens in zip(theirs[1:], best[1:], opening[1:], strict=True):
        assert account.reads == bound.reads
        if opens:
            continue
        assert bound.hits == min(bound.reads, capacity)
        assert account.hits <= bound.hits


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("budget", [0, 5, 100])
def test_whatever_comes_every_byte_has_one_fate(policy, budget):
    access = TopK(churn=0.3, zipf_exponent=2.0).build(4, BLOCK, 3)
    for account in drive(access, policy, capacity=40, budget=budget):
        assert account.reads == account.hits + account.late + account.demanded
        assert account.issued_bytes - account.waited_bytes <= budget
        if budget == 0:
            assert account.prefetch_hits == 0
