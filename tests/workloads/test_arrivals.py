"""Arrival processes against their laws, and their exactness."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.arrivals import Bursts, Modulated, Ramp, Renewal, at_rate, mean_rate
from workloads.errors import ConfigError

SEEDS = st.integers(0, 2**32 - 1)


def gaps_s(times):
    return np.diff(times) / 1e9


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_renewal_has_the_rate_and_the_cv_of_its_burstiness(rng, burstiness):
    gaps = gaps_s(Renewal(8.0, burstiness).first(rng, 200_000))
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.02)


def test_infinite_burstiness_is_constant(rng):
    assert Renewal(4.0, math.inf).first(rng, 4).tolist() == [
        250_000_000,
        500_000_000,
        750_000_000,
        1_000_000_000,
    ]


def test_infinite_rate_is_all_at_once(rng):
    assert Renewal(math.inf).first(rng, 3).tolist() == [0, 0, 0]


def test_poisson_gaps_are_not_cut(rng):
    """Some simulators cut gaps at three means, which raises the load by 5 %."""
    gaps = gaps_s(Renewal(1.0).first(rng, 100_000))
    assert np.mean(gaps > 3) == pytest.approx(math.exp(-3), rel=0.05)
    assert gaps.max() > 8


@given(seed=SEEDS, rate=st.floats(0.01, 1e4), burstiness=st.floats(0.1, 50), count=st.integers(1, 300))
def test_arrivals_are_sorted_and_later_ones_do_not_move_earlier_ones(seed, rate, burstiness, count):
    process = Renewal(rate, burstiness)
    times = process.first(np.random.default_rng(seed), count)
    longer = process.first(np.random.default_rng(seed), count + 50)
    assert times[0] >= 0
    assert np.all(np.diff(times) >= 0)
    assert np.array_equal(times, longer[:count])
    end = int(times[-1])
    within = process.until(np.random.default_rng(seed), end)
    assert np.array_equal(within, times[times < end])


def test_until_passes_chunks(rng):
    times = Renewal(1000.0).until(rng, 30 * 10**9)
    assert times.size == pytest.approx(30_000, rel=0.03)
    assert times[-1] < 30 * 10**9


def test_linear_ramp_runs_from_start_to_end_rate():
    times = Ramp("linear", 1.0, 3.0, math.inf).first(np.random.default_rng(0), 3)
    assert times.tolist() == [1_000_000_000, 1_500_000_000, 1_833_333_333]


def test_exponential_ramp_multiplies_the_rate():
    gaps = np.diff(Ramp("exponential", 1.0, 16.0, math.inf).first(np.random.default_rng(0), 5), prepend=0)
    assert gaps.tolist() == [1_000_000_000, 500_000_000, 250_000_000, 125_000_000, 62_500_000]


def test_ramp_is_random_about_its_rate(rng):
    times = Ramp("linear", 10.0, 30.0).first(rng, 40_000)
    first, last = gaps_s(times)[:4000].mean(), gaps_s(times)[-4000:].mean()
    assert first == pytest.approx(1 / 11, rel=0.05)
    assert last == pytest.approx(1 / 29, rel=0.05)


def test_modulated_rate_follows_its_steps_and_repeats(rng):
    process = Modulated(rate=100.0, burstiness=1.0, step_s=10.0, relative=(0.5, 1.5))
    seconds = process.until(rng, 4000 * 10**9) / 1e9
    slow = np.mean(seconds % 20 < 10)
    assert seconds.size == pytest.approx(400_000, rel=0.01)
    assert slow == pytest.approx(0.25, rel=0.02)


def test_modulated_constant_gaps_by_hand():
    process = Modulated(rate=1.0, burstiness=math.inf, step_s=2.0, relative=(0.5, 1.5))
    assert process.first(np.random.default_rng(0), 4).tolist() == [2e9, 2_666_666_667, 3_333_333_333, 4e9]
    assert process.expected_s(5) == pytest.approx(6.0)


BURSTS = {
    "scores": (-2.0, 0.0, 2.0),
    "gaps": (0.01, 0.1, 20.0),
    "level_share": 0.3,
    "level_hold": 20.0,
    "slope": -0.2,
}


@given(
    seed=SEEDS,
    rate=st.floats(0.01, 1e4),
    relative=st.lists(st.floats(0, 9), min_size=1, max_size=9).filter(lambda r: sum(r) > 0.01),
    per_step=st.floats(0.3, 40),
    count=st.integers(1, 300),
)
def test_bursts_fill_their_steps(seed, rate, relative, per_step, count):
    """Later requests do not move earlier ones; each step has the requests that it should have."""
    process = Bursts(rate, per_step / rate, tuple(relative), **BURSTS)
    times = process.first(np.random.default_rng(seed), count)
    assert times.size == count
    assert times[0] >= 0
    assert np.all(np.diff(times) >= 0)
    assert np.array_equal(times, process.first(np.random.default_rng(seed), count + 50)[:count])
    end = int(times[-1])
    assert np.array_equal(process.until(np.random.default_rng(seed), end), times[times < end])
    shares = np.cumsum(np.resize(relative, int(end / 1e9 * rate / per_step)) / np.mean(relative) * per_step)
    ends = (np.arange(shares.size) + 1) * (per_step / rate)
    arrived = np.searchsorted(times, ends * 1e9 + 1)
    # beside rounding, the next step's first request may stand at its start, where that step is full
    assert np.all(np.abs(arrived - shares) < 1.5001)


def test_bursts_scale_with_their_rate():
    slow = Bursts(2.0, 60.0, (0.5, 1.5), **BURSTS).first(np.random.default_rng(1), 1000)
    fast = Bursts(20.0, 6.0, (0.5, 1.5), **BURSTS).first(np.random.default_rng(1), 1000)
    assert np.allclose(slow, 10 * fast, rtol=0, atol=10)


def test_gaps_of_bursts_follow_their_law(rng):
    """One long step that has room for all of them."""
    law = {**BURSTS, "gaps": (0.01, 0.1, 1.0), "level_share": 0.3, "slope": 0.0}
    gaps = gaps_s(Bursts(1.0, 100_000.0, (1.0,), **law).first(rng, 99_990))
    assert np.quantile(gaps, [0.02275, 0.5, 0.97725]) == pytest.approx([0.01, 0.1, 1.0], rel=0.05)
    logs = np.log(gaps) - np.log(gaps).mean()
    correlation = [np.mean(logs[:-lag] * logs[lag:]) / logs.var() for lag in (1, 20)]
    assert correlation == pytest.approx([0.3 * 0.95, 0.3 * 0.95**20], abs=0.03)


def test_coarse_clock(rng):
    times = Modulated(50.0, 1.0, 60.0, (1.0,), tick_s=3.0).first(rng, 1000)
    assert set((times % 3_000_000_000).tolist()) == {0}


@given(
    times=st.lists(st.integers(0, 10**13), min_size=1, max_size=50).map(sorted).filter(lambda t: t[-1] > 0),
    rate=st.floats(0.001, 1000),
)
def test_stretching_keeps_order_and_reaches_the_rate(times, rate):
    stretched = at_rate(np.array(times), rate)
    assert np.all(np.diff(stretched) >= 0)
    assert mean_rate(stretched) == pytest.approx(rate, rel=1e-6)


def test_what_cannot_be_stretched():
    with pytest.raises(ConfigError, match="request_rate: all requests arrive at once"):
        at_rate(np.zeros(3, dtype=np.int64), 2.0)
    with pytest.raises(ConfigError, match="an infinite request_rate has no end"):
        Renewal(math.inf).until(np.random.default_rng(0), 10)
