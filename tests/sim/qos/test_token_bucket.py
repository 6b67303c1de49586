"""A bucket against its closed form, and against itself looked at more often."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.qos.token_bucket import TokenBucket

gaps = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=40
)


@given(depth=st.integers(1, 20), rate=st.sampled_from([0.001, 0.5, 3.0, 1234.567, 1e6]), history=gaps)
def test_level_and_waits_are_those_of_exact_arithmetic(depth, rate, history):
    """level(t) = min(depth, level(t0) + rate (t - t0)); what is asked for is there at `ready_ns` and not before."""
    bucket, seen_often = TokenBucket(depth, rate), TokenBucket(depth, rate)
    exact, per_ns, now, total = Fraction(depth), Fraction(str(rate)) / 10**9, 0, 0
    for gap, asked, looks in history:
        for look in range(looks):
            seen_often.take(0, now + gap * look // looks)  # taking nothing changes nothing
        now += gap
        exact = min(Fraction(depth), exact + per_ns * gap)
        count = min(asked, depth)
        assert bucket.holds(count, now) == seen_often.holds(count, now) == (exact >= count)
        if exact >= count:
            bucket.take(count, now)
            seen_often.take(count, now)
            exact -= count
            total += count
        else:
            ready = bucket.ready_ns(count)
            assert bucket.holds(count, ready)
            assert not bucket.holds(count, ready - 1)
    assert total <= depth + per_ns * now


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="a bucket must gain tokens"):
        TokenBucket(3, 0)
    bucket = TokenBucket(2, 1.0)
    bucket.take(2, 0)
    with pytest.raises(ValueError, match="1 tokens taken from a bucket that did not hold them"):
        bucket.take(1, 10**9 - 1)
