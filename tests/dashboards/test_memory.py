"""The memory section: shares that add up, what is found over time, and runs of older versions without it."""

import base64

import numpy as np
import pyarrow as pa
import pytest

from dashboards.memory_series import COLUMNS, hit_rate, memory_bands
from dashboards.result_files import KV_ACCESS, LINKS, TIMELINE
from tests.dashboards.directories import timeline_table, write_run, write_table
from tests.dashboards.test_report import Elements, figure_data, page
from workloads.errors import ConfigError

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


def memory_run(directory, **own):
    """A run with everything that the memory section can show."""
    write_run(directory, **own)
    columns = {name: [*values[:4].tolist(), 0.0] for name, values in timeline().items()}
    table = {**timeline_table(), **{name: columns[name] for name in COLUMNS}}
    write_table(
        {name: pa.array(values, pa.float64()) for name, values in table.items()}, directory / TIMELINE
    )
    write_table(
        {
            "t_s": pa.array([1.0, 3.0, 2.0, 4.0]),
            "replica": pa.array([0, 0, 1, 1]),
            "link": pa.array(["pcie_h2d"] * 4),
            "owner": pa.array(["reload", "reload", "<b>x</b>", "<b>x</b>"]),
            "bytes_per_s": pa.array([5e9, 0.0, 2e9, 0.0]),
        },
        directory / LINKS,
    )
    write_table(
        {
            "group": pa.array([0, 0, 1, 1]),
            "from_tokens": pa.array([0, 128, 0, 128]),
            "page_reads": pa.array([30, 10, 60, 0]),
            "attention_mass": pa.array([1.0, 1.0, 1.0, 1.0]),
        },
        directory / KV_ACCESS,
    )
    return directory


def numbers(data):
    """An array as Plotly writes it."""
    return np.frombuffer(base64.b64decode(data["bdata"]), dtype=data["dtype"])


LINK_USE = {"bytes_total": 14e9, "busy_s": 3.0, "utilization": 0.25, "effective_bytes_per_s": 4.7e9}


def test_the_section_shows_all_that_a_run_knows(tmp_path):
    directory = memory_run(
        tmp_path / "run",
        links={"pcie_h2d": {**LINK_USE, "by_owner": {"reload": LINK_USE}}},
        prefetch={"hit_rate": 0.75, "useful_bytes": 3e9, "wasted_bytes": 1e9, "policy": "stride"},
        kv_tiers={"reloaded_tokens": 1234, "host": {"used_gib_mean": 1.5}},
        kv_compression={"assumptions": {"perplexity_factor": 1.03}},
        tenants={"a<b>": {"tier": "gold", "completed": 12, "p99_ttft_ms": 40.0}},
    )
    document = page(directory)
    words = Elements(document).text
    for expected in (
        "perplexity factor",
        "1.03",
        "reloaded tokens",
        "1,234",
        "gold",
        "PCIe, host to device, reload",
    ):
        assert expected in words
    assert "75.0% of the reads found their page in HBM" in words
    assert "10.0% of all page reads reach 128 tokens or more back." in words
    assert "<b>x" not in document
    heat = figure_data(document, "access-0-data")["data"][0]
    assert heat["x"] == ["0 to 127", "128 and more"]
    assert numbers(heat["z"]).reshape(2, 2).tolist() == [[75.0, 25.0], [100.0, 0.0]]
    moved = figure_data(document, "link-0-data")["data"]
    assert [trace["name"] for trace in moved] == ["reload", "&lt;b&gt;x&lt;/b&gt;"]
    assert numbers(moved[0]["y"]).max() == pytest.approx(5.0)


def test_a_run_of_an_older_version_has_no_such_section(tmp_path):
    assert "KV memory" not in Elements(page(write_run(tmp_path / "run"))).text


def test_a_broken_table_of_links_is_one_line(tmp_path):
    directory = memory_run(tmp_path / "run")
    (directory / LINKS).write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"links\.parquet: cannot be read"):
        page(directory)
