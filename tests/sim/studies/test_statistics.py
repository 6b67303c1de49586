"""Warm-up, resampling and intervals on series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.studies.statistics import (
    block_length,
    block_weights,
    count_blocks,
    interval,
    means,
    mser5,
    paired_draws,
    resampled_deviation,
    t_half_width,
)


class Mean:
    """The mean of a series: the simplest sample."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return self.values.size

    def estimate(self, weights):
        known = ~np.isnan(self.values)
        total = weights[known].sum()
        return np.array([weights[known] @ self.values[known] / total if total else np.nan])


def autocorrelated(rng, size, phi=0.5):
    """AR(1) with unit innovations, from its stationary distribution."""
    noise = rng.standard_normal(size)
    noise[0] /= np.sqrt(1 - phi**2)
    for i in range(1, size):
        noise[i] += phi * noise[i - 1]
    return noise


def coverage(effect, replications, trials, size=300):
    """Share of intervals for the difference of two arms that hold `effect`; the arms share most of their noise."""
    rng = np.random.default_rng(20240229)
    hits = 0
    for _ in range(trials):
        first = [autocorrelated(rng, size, 0.8) for _ in range(replications)]
        second = [series + autocorrelated(rng, size) / 2 + effect for series in first]
        draws = paired_draws([list(map(Mean, first)), list(map(Mean, second))], rng, draws=200)
        blocks = count_blocks([Mean(series) for series in first])
        low, high = interval(draws[:, 1, 0] - draws[:, 0, 0], blocks)
        hits += low <= effect <= high
    return hits / trials


class TestIntervals:
    @pytest.mark.parametrize("effect", [0.0, 0.4])
    def test_one_replication_covers_the_truth_as_often_as_it_says(self, effect):
        assert 0.90 <= coverage(effect, replications=1, trials=200) <= 0.99

    def test_several_replications_err_to_the_wide_side(self):
        assert 0.93 <= coverage(0.0, replications=4, trials=100) <= 1.0

    def test_pairing_is_what_makes_them_narrow(self):
        rng = np.random.default_rng(1)
        first = autocorrelated(rng, 400, 0.8)
        second = first + rng.standard_normal(400) / 10
        paired = paired_draws([[Mean(first)], [Mean(second)]], rng, 200)
        apart = [paired_draws([[Mean(series)]], rng, 200)[:, 0, 0] for series in (first, second)]
        assert np.std(paired[:, 1, 0] - paired[:, 0, 0]) < np.std(apart[1] - apart[0]) / 5

    def test_identical_arms_differ_by_exactly_nothing(self):
        rng = np.random.default_rng(2)
        arm = [Mean(autocorrelated(rng, 97)) for _ in range(3)]
        draws = paired_draws([arm, arm], rng, 50)
        assert interval(draws[:, 1, 0] - draws[:, 0, 0], 30) == (0.0, 0.0)

    def test_same_generator_state_same_draws(self):
        arms = [[Mean(np.arange(50.0))], [Mean(np.arange(50.0) ** 2)]]
        one, other = (paired_draws(arms, np.random.default_rng(5), 20) for _ in range(2))
        assert np.array_equal(one, other)

    def test_replications_without_a_value_are_left_out_of_the_mean(self):
        empty, full = Mean(np.full(4, np.nan)), Mean(np.array([1.0, 3.0]))
        assert means([empty, full]) == [2.0]
        assert np.isnan(means([empty])[0])

    def test_no_interval_from_too_few_values(self):
        assert interval(np.array([1.0] * 4 + [np.nan] * 6), 9) is None
        assert interval(np.array([1.0] * 6 + [np.nan] * 4), 9) == (1.0, 1.0)
        assert interval(np.ones(10), blocks=1) is None

    def test_many_blocks_give_the_plain_percentiles(self):
        values = np.arange(1001.0)
        assert interval(values, 10**6) == pytest.approx((25, 975), abs=0.1)
        assert interval(values, 10)[0] < 15  # and few of them a wider interval

    def test_students_interval(self):
        # Half width 2.776 s / sqrt(5), 2.776 being the 97.5% point at four degrees of freedom.
        values = [1.0, 2.0, 3.0, 4.0, 5.0]
        assert t_half_width(values) == pytest.approx(2.7764451 * np.sqrt(2.5) / np.sqrt(5), rel=1e-6)
        assert t_half_width([1.0]) == np.inf


class TestBlocks:
    @given(st.integers(1, 400), st.integers(0, 2**32))
    def test_as_many_requests_as_there_were(self, size, seed):
        weights = block_weights(np.random.default_rng(seed), size)
        assert weights.sum() == size
        assert weights.min() >= 0

    def test_every_request_is_as_likely(self):
        rng = np.random.default_rng(3)
        mean = np.mean([block_weights(rng, 50) for _ in range(20_000)], axis=0)
        assert np.abs(mean - 1).max() < 0.06

    @pytest.mark.parametrize("size", [49, 50, 3])
    def test_deviation_of_a_sum_over_resamples(self, size):
        rng = np.random.default_rng(8)
        values = autocorrelated(rng, size, 0.9)
        sums = [float(values @ block_weights(rng, size)) for _ in range(20_000)]
        assert resampled_deviation(values) == pytest.approx(np.std(sums), rel=0.03)

    def test_neighbours_are_taken_together(self):
        rng = np.random.default_rng(4)
        size = 400
        block = block_length(size)
        changes = [np.count_nonzero(np.diff(block_weights(rng, size))) for _ in range(50)]
        assert (
            max(changes) <= 2 * size / block
        )  # a block starts and ends once; single requests change far more


class TestWarmup:
    def test_finds_the_end_of_a_ramp(self):
        rng = np.random.default_rng(6)
        level = np.concatenate([np.linspace(0, 10, 200), np.full(800, 10.0)])
        assert 150 <= mser5(level + rng.standard_normal(1000)) <= 260

    def test_a_settled_series_keeps_nearly_everything(self):
        rng = np.random.default_rng(7)
        assert np.mean([mser5(rng.standard_normal(1000)) for _ in range(40)]) < 100

    def test_constant_series_loses_nothing(self):
        assert mser5(np.full(100, 7.0)) == 0

    def test_at_most_half_of_a_series_that_never_settles(self):
        assert 490 <= mser5(np.arange(1000.0)) <= 500

    @pytest.mark.parametrize("size", [0, 1, 4, 9])
    def test_too_short_to_say(self, size):
        assert mser5(np.arange(float(size))) == 0

    def test_missing_values_do_not_move_the_cut(self):
        rng = np.random.default_rng(8)
        series = np.concatenate([np.full(100, 50.0), np.zeros(900)]) + rng.standard_normal(1000)
        holes = series.copy()
        holes[rng.integers(0, 1000, 100)] = np.nan
        holes[300:320] = np.nan
        assert mser5(series) == pytest.approx(100, abs=10)
        assert mser5(holes) == pytest.approx(100, abs=10)
        assert mser5(np.full(100, np.nan)) == 0
