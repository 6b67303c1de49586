"""Metrics against NumPy on what they abbreviate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.metrics import Requests, latency_statistics, peak_concurrency, weighted_percentiles

parts = st.lists(
    st.integers(0, 40).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.int64, n, elements=st.one_of(st.integers(0, 10), st.integers(0, 1 << 50))),
            hnp.arrays(np.int64, n, elements=st.integers(0, 5)),
        )
    ),
    min_size=1,
    max_size=4,
).filter(lambda ps: sum(int(w.sum()) for _, w in ps) > 0)


@given(parts=parts, percentiles=st.lists(st.floats(0, 100), min_size=1, max_size=4))
def test_weighted_percentiles_are_numpys_of_the_repeated_values(parts, percentiles):
    everything = np.concatenate([np.repeat(values, weights) for values, weights in parts])
    expected = np.percentile(everything, percentiles)
    assert weighted_percentiles(parts, percentiles) == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=20))
def test_peak_concurrency_is_the_largest_overlap_of_half_open_intervals(intervals):
    starts = np.array([s for s, _ in intervals], dtype=np.int64)
    ends = np.array([s + length for s, length in intervals], dtype=np.int64)
    brute = max((int(((starts <= t) & (t < ends)).sum()) for t in range(45)), default=0)
    assert peak_concurrency(starts, ends) == brute


def columns(**override: list[int]) -> dict[str, np.ndarray]:
    base = {
        "status": [0, 0, 2],
        "replica": [0, 0, 0],
        "arrival_ns": [0, 10, 20],
        "input_tokens": [5, 6, 7],
        "output_tokens": [1, 5, 3],
        "scheduled_ns": [1_000_000, 2_000_010, -1],
        "first_token_ns": [4_000_000, 6_000_010, -1],
        "last_token_ns": [4_000_000, 46_000_010, -1],
        "cached_tokens": [0, 0, 0],
        "queued_ns": [0, 500_010, 20],
        "loading_ns": [0, 500_000, 0],
        "preemptions": [0, 1, 0],
        "paused_prefill_ns": [0, 0, 0],
        "paused_decode_ns": [0, 3_000_000, 0],
    }
    return {name: np.array(values, dtype=np.int64) for name, values in (base | override).items()}


def test_definitions_by_hand():
    requests = Requests(columns())
    assert requests.ttft_ns.tolist() == [4_000_000, 6_000_000]
    assert requests.e2el_ns.tolist() == [4_000_000, 46_000_000]
    assert np.isnan(requests.tpot_ns[0])
    assert requests.tpot_ns[1] == 10_000_000
    assert {k: v.tolist() for k, v in requests.stages_ns.items()} == {
        "tokenise": [0, 500_000],
        "queue": [1_000_000, 1_000_000],
        "prefix_load": [0, 500_000],
        "prefill": [3_000_000, 4_000_000],
        "decode": [0, 37_000_000],
        "preempted": [0, 3_000_000],
    }
    assert requests.good({"tpot": 9.9}).tolist() == [True, False]  # one token counts as a TPOT of 0
    assert requests.good({"ttft": 6.0, "tpot": 10.0, "e2el": 46.0}).tolist() == [
        True,
        True,
    ]  # limits are included
    assert requests.duration_ns == 46_000_010


def test_statistics_are_milliseconds_population_std_linear_percentiles():
    values = np.array([1_000_000, 2_000_000, 4_000_000])
    assert latency_statistics("ttft", values) == pytest.approx(
        {
            "mean_ttft_ms": 7 / 3,
            "median_ttft_ms": 2,
            "std_ttft_ms": np.std([1, 2, 4]),
            "p50_ttft_ms": 2,
            "p90_ttft_ms": 3.6,
            "p95_ttft_ms": 3.8,
            "p99_ttft_ms": 3.96,
        }
    )
    assert set(latency_statistics("x", values[:0]).values()) == {None}
