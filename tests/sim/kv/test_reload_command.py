"""`servetwin reload`: where reloading KV pays, as a user meets it."""

from __future__ import annotations

import json

import pytest
import yaml

from sim.cli import run_command

SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "workload": {"input_tokens": 100, "output_tokens": 10, "request_rate": 1.0, "num_requests": 10},
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return str(path)


def document(capsys, *arguments):
    assert run_command(["reload", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_reload_pays_above_some_context_and_loses_below_it(file, capsys):
    """The known result, for a transfer of 2 ms latency, and for a disk; shorter latency, earlier crossover."""
    slow = document(capsys, file, "--latency-us", "2000", "--disk-gb-per-s", "3")
    host, disk = slow["links"]["host"], slow["links"]["disk"]
    assert slow["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert host["gb_per_s"] == 64
    assert host["pays_tokens"] == [[host["crossover_tokens"], slow["longest_tokens"]]]
    assert 128 <= host["crossover_tokens"] <= 1024
    assert 16_384 < disk["crossover_tokens"] < 131_072
    quick = document(capsys, file, "--latency-us", "1000")
    assert quick["links"]["host"]["crossover_tokens"] < host["crossover_tokens"]
    assert "disk" not in quick["links"]
    for row in slow["contexts"]:
        for name, link in slow["links"].items():
            assert (row[f"{name}_ms"] < row["recompute_ms"]) == (row["tokens"] >= link["crossover_tokens"])


def test_times_are_those_of_the_link_and_the_cost_model(file, capsys):
    told = document(capsys, file, "--host-gb-per-s", "10", "--latency-us", "500")
    fast = document(capsys, file, "--host-gb-per-s", "20", "--latency-us", "500")
    for slow_row, fast_row in zip(told["contexts"], fast["contexts"], strict=True):
        assert slow_row["recompute_ms"] == fast_row["recompute_ms"]
        moved_ms = slow_row["tokens"] * told["kv_bytes_per_token"] / 10e9 * 1e3
        assert slow_row["host_ms"] - fast_row["host_ms"] == pytest.approx(moved_ms / 2)


def test_the_scenario_s_links_count(file, capsys):
    tiers = ["--set", "engine.enable_prefix_caching=true", "--set", "kv_tiers.host_gib=10.0"]
    disk = ["--set", "kv_tiers.disk_gib=10.0", "--set", "links.disk=3.0", "--set", "links.latency_us=100"]
    told = document(capsys, file, *tiers, *disk, "--set", "links.pcie_h2d=20.0")
    assert told["links"]["host"]["gb_per_s"] == 20
    assert told["links"]["disk"]["gb_per_s"] == 3
    assert told["latency_us"] == 100
    assert len(told["contexts"]) == 6


def test_it_says_so_in_words(file, capsys):
    assert run_command(["reload", file, "--disk-gb-per-s", "0.1", "--latency-us", "2000"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "llama-3.1-8b on 1 x" in text
    assert "From host (64 GB/s) reloading pays from" in text
    assert "From disk (0.1 GB/s) computing again is faster at every length" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host-gb-per-s", "0"], "--host-gb-per-s: 0 is no bandwidth"),
        (["--disk-gb-per-s", "-1"], "--disk-gb-per-s: -1 is no bandwidth"),
        (["--latency-us", "-1"], "--latency-us: -1 is no latency"),
        (["--out", "results"], "--out: reload writes no files"),
        (["--set", "engine.max_model_len=10"], "engine.max_model_len: 10 tokens have no full block"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(file, capsys, arguments, message):
    assert run_command(["reload", file, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
