"""Laws of lengths: bounds, means, and what a scenario may write."""

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from pydantic import TypeAdapter

from workloads.errors import ConfigError
from workloads.lengths import Lengths, draw_lengths, law_of

PARSE = TypeAdapter(Lengths).validate_python


def draw(spec, count=100_000, seed=7):
    return draw_lengths(PARSE(spec), np.random.default_rng(seed), count)


def test_fixed():
    assert set(draw(1024, 10).tolist()) == {1024}


def test_uniform_includes_both_ends():
    values, counts = np.unique(draw({"uniform": [3, 7]}), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert counts.min() > 0.97 * 20_000
    assert set(draw({"uniform": [5, 5]}, 10).tolist()) == {5}


@pytest.mark.parametrize(
    ("mean", "sigma", "low", "high"),
    [
        (512, 0.8, 16, 8192),
        (512, 2.0, 16, 1024),
        (100, 1.0, 1, None),
        (900, 3.0, 100, 1000),
        (64, 0.1, 1, 4096),
    ],
)
def test_lognormal_mean_is_that_of_the_lengths_drawn(mean, sigma, low, high):
    law = {"mean": mean, "sigma": sigma, "low": low, "high": high}
    lengths = draw({"lognormal": law}, 400_000)
    assert lengths.mean() == pytest.approx(mean, rel=0.015)
    assert lengths.min() >= low
    assert high is None or lengths.max() <= high


def test_lognormal_without_truncation_in_sight_is_the_plain_one():
    logs = np.log(draw({"lognormal": {"mean": 5000, "sigma": 0.5}}, 200_000))
    assert logs.std() == pytest.approx(0.5, rel=0.01)
    assert logs.mean() == pytest.approx(np.log(5000) - 0.125, rel=0.001)


def test_truncation_conditions_and_does_not_clip():
    """Clipping would pile up mass on the bounds; the truncated law has no more there than next to them."""
    lengths = draw({"lognormal": {"mean": 60, "sigma": 1.0, "low": 40, "high": 100}}, 200_000)
    counts = np.bincount(lengths, minlength=101)
    assert counts[40] == pytest.approx(counts[41], rel=0.1)
    assert counts[100] == pytest.approx(counts[99], rel=0.15)


def test_quantiles_are_met():
    lengths = draw({"quantiles": [10, 100, 1000]}, 200_000)
    assert (lengths.min(), lengths.max()) == (10, 1000)
    assert np.percentile(lengths, [25, 50, 75]) == pytest.approx([55, 100, 550], rel=0.02)


SPECS = st.one_of(
    st.integers(1, 10**6),
    st.tuples(st.integers(1, 5000), st.integers(0, 5000)).map(lambda t: {"uniform": [t[0], t[0] + t[1]]}),
    st.builds(
        lambda low, width, at, sigma: {
            "lognormal": {"mean": low + width * at, "sigma": sigma, "low": low, "high": low + width}
        },
        st.integers(1, 5000),
        st.integers(10, 100_000),
        st.floats(0.05, 0.95),
        st.floats(0.05, 4),
    ),
    st.lists(st.integers(1, 10**5), min_size=2, max_size=20).map(lambda q: {"quantiles": sorted(q)}),
)


@given(spec=SPECS, seed=st.integers(0, 2**32))
def test_same_seed_same_lengths_within_bounds_and_near_the_mean(spec, seed):
    try:
        lengths = draw(spec, 300, seed)
    except ConfigError:
        reject()  # see the test of such means below
    assert np.array_equal(lengths, draw(spec, 300, seed))
    law = law_of(PARSE(spec))
    assert lengths.min() >= 1
    ends = law.at(np.array([0.0, 1 - 1e-12]))
    assert ends[0] <= lengths.min()
    assert lengths.max() <= ends[1]
    spread = max(lengths.std(), 1)
    assert abs(lengths.mean() - law.mean) <= 6 * spread / np.sqrt(300) + 0.5


@given(spec=SPECS)
def test_lengths_rise_with_probability(spec):
    """One uniform number a length: two laws under one seed are compared on common random numbers."""
    try:
        lengths = law_of(PARSE(spec)).at(np.linspace(0, 1 - 1e-9, 200))
    except ConfigError:
        reject()
    assert np.all(np.diff(lengths) >= 0)


def test_a_mean_pressed_against_a_bound_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"lognormal: mean 3027.25 is too near a bound, of low 3027 and high 3037"
    ):
        draw({"lognormal": {"mean": 3027.25, "sigma": 9.0, "low": 3027, "high": 3037}})
