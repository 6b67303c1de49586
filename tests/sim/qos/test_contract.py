"""What shares and bursts come to."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.qos.tiers import contracts, tier


def test_gold_and_silver_of_which_more_is_promised_than_there_is():
    """Gold 70% with bursts of 1.2, silver 85% with none: what is promised is cut to 70/155 and 85/155 of the pool."""
    what = contracts(tier("gold", "0.7", "1.2", 5.0), tier("silver", "0.85"))
    gold, silver = what.amounts(1000)
    assert gold == (451, 700, 840)
    assert silver == (548, 850, 850)
    bucket = what.bucket(what.tiers[0], gold)
    assert bucket.holds(140, 0)
    assert not bucket.holds(141, 0)
    assert what.bucket(what.tiers[1], silver) is None


def test_hard_isolation_is_the_share_and_no_more():
    assert contracts(tier("a", "0.7"), tier("b", "0.1"), hard=True).amounts(10) == [(7, 7, 7), (1, 1, 1)]


@given(
    shares=st.lists(st.tuples(st.integers(1, 100), st.integers(100, 300)), min_size=1, max_size=6),
    total=st.integers(1, 10_000),
)
def test_promises_can_be_kept(shares, total):
    tiers = [
        tier(str(i), str(Fraction(share, 100)), str(min(Fraction(burst, 100), Fraction(100, share))))
        for i, (share, burst) in enumerate(shares)
    ]
    amounts = contracts(*tiers).amounts(total)
    assert sum(amount.guarantee for amount in amounts) <= total
    for amount in amounts:
        assert amount.guarantee <= amount.level <= amount.most <= total
