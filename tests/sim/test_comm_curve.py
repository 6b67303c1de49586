"""All-reduce by size: measured times, of which a message takes none that is longer than a larger one's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.curves.comm import CommCurve
from sim.profile import load_profile, shipped_profiles

ROUNDING = 1e-12


@st.composite
def tables(draw):
    """Increasing sizes [bytes], and any times [s]."""
    sizes = sorted(draw(st.sets(st.integers(1, 2**34), min_size=1, max_size=12)))
    times = draw(st.lists(st.floats(1e-6, 1e-1), min_size=len(sizes), max_size=len(sizes)))
    return sizes, times


def curve(sizes, times):
    return CommCurve(source="test", message_bytes={2: tuple(sizes)}, time_s={2: tuple(times)})


@given(table=tables(), asked=st.lists(st.floats(0, 2**36), min_size=2, max_size=40))
def test_times_never_fall_with_size(table, asked):
    times = curve(*table).seconds(2, np.sort(np.array([*asked, *table[0]])))
    assert (times[1:] >= times[:-1] * (1 - ROUNDING)).all()


@given(table=tables())
def test_a_size_takes_the_least_time_of_all_from_it_on(table):
    """By a naive reference; where times rise already, that is the table."""
    sizes, times = table
    least = [min(times[i:]) for i in range(len(times))]
    np.testing.assert_allclose(curve(sizes, times).seconds(2, sizes), least, rtol=ROUNDING)
    np.testing.assert_allclose(curve(sizes, sorted(times)).seconds(2, sizes), sorted(times), rtol=ROUNDING)


@given(table=tables(), size=st.floats(1, 2**36))
def test_no_message_takes_longer_than_a_larger_measured_one_nor_less_than_the_quickest(table, size):
    sizes, times = table
    taken = float(curve(sizes, times).seconds(2, size))
    longer = [time for at, time in zip(sizes, times, strict=True) if at >= size]
    if longer:
        assert taken <= min(longer) * (1 + ROUNDING)
    assert taken >= min(times) * (1 - ROUNDING)


@given(table=tables(), factor=st.floats(1, 1000))
def test_beyond_the_largest_size_its_bandwidth_holds(table, factor):
    sizes, times = table
    taken = float(curve(sizes, times).seconds(2, factor * sizes[-1]))
    assert taken == pytest.approx(factor * times[-1])


def test_between_two_sizes_a_power_law():
    taken = curve([1024, 4096], [1e-5, 4e-5]).seconds(2, 2048)
    assert float(taken) == pytest.approx(2e-5)


def test_a_dip_in_the_table_pulls_smaller_messages_down():
    taken = curve([1024, 4096, 16384], [1e-5, 9e-5, 2e-5]).seconds(2, [1024, 2048, 4096, 8192, 16384])
    np.testing.assert_allclose(taken, [1e-5, 1e-5 * 2**0.5, 2e-5, 2e-5, 2e-5])


def test_shipped_times_never_fall():
    curves = [load_profile(name).all_reduce for name in shipped_profiles()]
    for reduce in filter(None, curves):
        for gpus, sizes in reduce.message_bytes.items():
            asked = np.unique(np.concatenate([np.geomspace(1, 4 * sizes[-1], 500), sizes]))
            times = reduce.seconds(gpus, asked)
            assert (times[1:] >= times[:-1] * (1 - ROUNDING)).all()
            assert (reduce.seconds(gpus, sizes) <= np.array(reduce.time_s[gpus]) * (1 + ROUNDING)).all()
    assert sum(curve is not None for curve in curves) >= 6
