import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards import series
from tests.dashboards.directories import timeline_table

TIMELINE = {name: np.array(values, dtype=float) for name, values in timeline_table().items()}


def test_quantiles_are_those_of_the_summary():
    values = np.array([3.0, 1.0, np.nan, 2.0, 10.0])
    at = dict(zip(series.QUANTILES.tolist(), series.quantiles(values), strict=True))
    assert at[0] == 1.0
    assert at[100] == 10.0
    assert at[99] == np.percentile([1, 2, 3, 10], 99)
    assert series.QUANTILES.size == 501
    assert np.all(np.diff(series.QUANTILES) > 0)


def test_quantiles_of_nothing_and_of_one():
    assert series.quantiles(np.array([np.nan])).size == 0
    assert set(series.quantiles(np.array([4.0]))) == {4.0}


@pytest.mark.parametrize(
    ("values", "wide"),
    [([1.0, 100.0], True), ([1.0, 2.0], False), ([0.0, 100.0], False), ([], False), ([np.nan], False)],
)
def test_wide(values, wide):
    assert series.wide(np.array(values)) is wide


def test_total_adds_replicas_at_every_change():
    times, totals = series.total_over_replicas(TIMELINE["t_s"], TIMELINE["replica"], TIMELINE["running"])
    assert times.tolist() == [0, 1, 3]
    assert totals.tolist() == [3, 4, 0]


def test_total_of_nothing():
    times, totals = series.total_over_replicas(np.zeros(0), np.zeros(0), np.zeros(0))
    assert times.size == totals.size == 0


def test_band_has_mean_least_and_greatest_of_each_bucket():
    band = series.band(
        np.array([0.0, 1.0, 1.5, 3.0]), np.array([2.0, 6.0, 1.0, 0.0]), np.array([0.0, 2.0, 4.0])
    )
    assert band.width_s == 2
    assert band.mean.tolist() == [(2 + 3 + 0.5) / 2, 0.5]
    assert band.low.tolist() == [1, 0]
    assert band.high.tolist() == [6, 1]


def test_band_before_the_first_change_is_zero():
    band = series.band(np.array([3.0]), np.array([5.0]), np.array([0.0, 1.0, 2.0, 4.0])[:3])
    assert band.high.tolist() == [0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=30),
    st.sampled_from([1, 2, 5, 8]),
)
def test_band_keeps_area_and_peak(changes, buckets):
    times = np.array(sorted({t for t, _ in changes}), dtype=float) / 4
    values = np.array([v for _, v in changes][: times.size], dtype=float)
    edges = np.linspace(0, 10, buckets + 1)
    band = series.band(times, values, edges)
    area = float(values @ np.diff(times, append=10.0)) if times.size else 0.0
    assert band.mean.sum() * band.width_s == pytest.approx(area)
    inside = values[times < 10]
    assert band.high.max() == max(
        [0.0, *inside] if (times.size and times[0] > 0) or not times.size else inside
    )
    assert np.all(band.low <= band.mean + 1e-9)
    assert np.all(band.mean <= band.high + 1e-9)


def test_rate_spreads_tokens_over_the_time_of_their_row():
    edges = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    tokens = TIMELINE["decode_seqs"] * TIMELINE["steps"]
    rate = series.rate(TIMELINE, tokens, edges[[0, 2, 3]])
    assert rate.mean.tolist() == [20, 20]
    first = series.rate(
        TIMELINE, 0 * tokens, np.array([0.0, 1.0, 2.0]), instants=np.array([0.0, 0.5, 1.0, 1.5])
    )
    assert first.mean.tolist() == [3, 1]


def test_timeline_bands_of_all_replicas_and_of_one():
    bands = series.timeline_bands(TIMELINE, np.array([0.5]), 100, end_s=4.0, buckets=16)
    assert bands["running"].high.max() == 4
    assert bands["waiting"].high.tolist() == [1] * 4 + [0] * 12
    assert bands["kv_use"].high.max() == 100 * 20 / 200
    assert bands["kv_use"].mean[0] == 100 * 15 / 200
    assert bands["output_rate"].width_s == 4 * bands["running"].width_s
    assert bands["output_rate"].mean.tolist() == [21, 20, 20, 0]
    assert bands["prompt_rate"].mean.tolist() == [100, 0, 0, 0]
    one = series.timeline_bands(series.of_replica(TIMELINE, 1), np.zeros(0), 100, end_s=4.0, buckets=16)
    assert one["running"].high.max() == 1
    assert one["kv_use"].high.max() == 5


def test_slowest_is_at_least_one():
    assert series.slowest(np.array([1.0, np.nan, 3.0]), 0.01).tolist() == [False, False, True]
    assert not series.slowest(np.array([np.nan]), 0.01).any()
    assert series.slowest(np.arange(200.0), 0.01).sum() == 2


def test_splits_sum_to_the_latency():
    stages = {"queue": np.array([1.0, 2.0]), "prefill": np.array([1.0, 1.0]), "decode": np.array([5.0, 9.0])}
    everyone, slow = series.splits_end_to_end(stages, np.array([7.0, 12.0]))
    assert (everyone.requests, everyone.total) == (2, 9.5)
    assert (slow.requests, slow.total, slow.stages["decode"]) == (1, 12.0, 9.0)


def test_time_to_first_token_names_what_was_spent_preempted():
    stages = {
        "queue": np.array([1.0]),
        "prefill": np.array([2.0]),
        "decode": np.array([5.0]),
        "preempted": np.array([9.0]),
    }
    everyone, _ = series.splits_to_first_token(stages, np.array([3.5]))
    assert everyone.stages == {"queue": 1.0, "prefill": 2.0, "preempted": 0.5}
    exact, _ = series.splits_to_first_token(stages, np.array([3.0 + 1e-12]))
    assert exact.stages["preempted"] == 0
