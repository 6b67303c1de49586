"""The study of prefetchers on one link: steps wait for their bytes, and no longer."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from sim.kv.access import TopK
from sim.kv.paging.account import PagingAccount
from sim.kv.paging.study import Load, Outcome, run, table
from sim.kv.prefetch import AttentionWeighted, NoPrefetch, Oracle, Scheduled, Stride
from tests.sim.kv.prefetchers import POLICIES

LOAD = Load(
    prompts=[400, 500],
    steps=30,
    groups=4,
    block_size=16,
    page_bytes=65_536,
    resident=0.5,
    step_ns=2_000_000,
    bytes_per_s=10_000_000_000,
)


def test_a_step_waits_for_its_bytes_and_no_longer():
    outcome = run(LOAD, TopK(fraction=0.7), NoPrefetch())
    waited = outcome.elapsed_ns - LOAD.steps * LOAD.step_ns
    exact = outcome.account.demand_bytes / LOAD.bytes_per_s * 1e9
    assert exact <= waited < exact + LOAD.steps
    assert outcome.account.demand_bytes > 0
    assert outcome.prefetch_share == 0
    assert outcome.link_share == pytest.approx(exact / outcome.elapsed_ns, rel=1e-6)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_link_carries_no_more_than_it_can(policy):
    outcome = run(LOAD, TopK(fraction=0.7, churn=0.5), policy)
    assert 0 <= outcome.prefetch_share <= outcome.link_share <= 1
    assert outcome.account.imbalance_bytes == 0


def test_twice_the_bandwidth_and_half_the_step_is_the_same_in_half_the_time():
    fast = Load(**{**asdict(LOAD), "step_ns": 1_000_000, "bytes_per_s": 20_000_000_000})
    for policy in POLICIES:
        one, two = run(LOAD, TopK(fraction=0.5), policy), run(fast, TopK(fraction=0.5), policy)
        assert one.account == two.account
        assert one.elapsed_ns == pytest.approx(2 * two.elapsed_ns, abs=2 * LOAD.steps)


def test_who_looks_where_attention_is_gains_more_for_less_bandwidth_than_a_stride():
    """The ordering of SYSTEMS K14, where few pages are read and HBM holds fewer than a step reads."""
    load = Load(
        prompts=[4000 + 250 * i for i in range(8)],
        steps=100,
        groups=8,
        block_size=16,
        page_bytes=262_144,
        resident=0.02,
        step_ns=8_000_000,
        bytes_per_s=50_000_000_000,
    )
    policies = (NoPrefetch(), Stride(), AttentionWeighted(), Scheduled(), Oracle())
    found = {policy.name: run(load, TopK(blocks=8), policy) for policy in policies}
    stride, weighted = found["stride"], found["attention_weighted"]
    assert found["none"].account.hit_rate < stride.account.hit_rate < weighted.account.hit_rate
    assert weighted.prefetch_share < stride.prefetch_share
    times = [outcome.mean_step_ms for outcome in found.values()]
    assert times == sorted(times, reverse=True)
    lines = table(found).splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(found)


def test_an_outcome_of_nothing_prefetched_has_no_division_by_zero():
    outcome = Outcome(LOAD, PagingAccount(), np.array([1]))
    assert outcome.account.hit_rate == 1
    assert "0%" in table({"none": outcome})
