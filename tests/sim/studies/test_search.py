"""Searches find where an answer changes, and ask little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.studies.search import fewest, greatest


@given(st.floats(0.011, 1.0))
def test_greatest_within_its_ratio(edge):
    asked = []

    def holds(value):
        asked.append(value)
        return value <= edge

    found = greatest(holds, 1.0, floor=0.01, ratio=1.01)
    assert found is not None
    assert found <= edge <= found * 1.01
    assert len(asked) < 18


def test_greatest_stops_at_both_ends():
    assert greatest(lambda value: True, 8.0, floor=0.1, ratio=1.01) == 8.0
    assert greatest(lambda value: False, 8.0, floor=0.1, ratio=1.01) is None
    assert greatest(lambda value: value <= 0.1, 8.0, floor=0.1, ratio=1.01) == pytest.approx(0.1)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(1, 50))
def test_fewest_is_exact(edge, least, guess, most):
    asked = []

    def holds(count):
        assert least <= count <= most
        asked.append(count)
        return count >= edge

    found = fewest(holds, least=least, most=most, guess=guess)
    expected = max(edge, least)
    assert found == (expected if expected <= most else None)
    assert len(asked) == len(set(asked))


def test_a_good_guess_asks_twice():
    asked = []
    assert fewest(lambda n: asked.append(n) or n >= 500, least=1, most=1024, guess=500) == 500
    assert asked == [500, 499]
