"""The memory section: shares that add up, what is found over time, and runs of older versions without it."""

import numpy as np
import pytest

from dashboards.memory_series import hit_rate, memory_bands

BLOCKS, SIZE = 10, 4


def timeline(**override):
    """Two replicas: one holds 5 blocks, then 10, then idles; the other holds 2 throughout."""
    columns = {
        "t_s": [0.0, 1.0, 2.0, 0.0],
        "replica": [0, 0, 0, 1],
        "kv_used_blocks": [5, 10, 0, 2],
        "kv_waste_tokens": [4, 8, 0, 0],
        "kv_cached_blocks": [1, 0, np.nan, 3],
        "kv_fragmentation": [0.5, 0.0, 0.0, 0.0],
        "prefix_queries": [100, 150, 150, 0],
        "prefix_hits": [10, 50, 50, 0],
    }
    return {name: np.array(values, dtype=float) for name, values in (columns | override).items()}


def test_shares_are_of_the_memory_of_all_replicas():
    bands = memory_bands(timeline(), BLOCKS, SIZE, 3.0, 3)
    assert bands["stored"].mean == pytest.approx([(4 + 2) * 5, (8 + 2) * 5, 2 * 5])
    assert bands["waste"].mean == pytest.approx([5, 10, 0])
    assert bands["cached"].mean == pytest.approx([20, 15, 15])  # what an idle replica had before it idled
    assert bands["fragmentation"].mean == pytest.approx([25, 0, 0])


def test_hits_are_counted_where_they_happened():
    found = hit_rate(timeline(), 3.0, 3)
    assert found is not None
    assert found.mean[:2] == pytest.approx([10, 80])
    assert np.isnan(found.mean[2])
    silent = timeline(prefix_queries=[0, 0, 0, 0], prefix_hits=[0, 0, 0, 0])
    assert hit_rate(silent, 3.0, 3) is None


def test_every_token_looked_up_is_in_some_bucket():
    rng = np.random.default_rng(3)
    t = np.sort(rng.random(50)) * 9
    queries = np.cumsum(rng.integers(1, 9, 50)).astype(float)
    columns = timeline(
        **{
            name: np.zeros(50)
            for name in (
                "replica",
                "kv_used_blocks",
                "kv_waste_tokens",
                "kv_cached_blocks",
                "kv_fragmentation",
            )
        }
    ) | {"t_s": t, "prefix_queries": queries, "prefix_hits": queries / 2}
    for buckets in (1, 2, 7):
        found = hit_rate(columns, t[-1], buckets)
        assert np.nan_to_num(found.mean, nan=50.0) == pytest.approx(np.full(buckets, 50.0))
