"""`servetwin cache` as a user meets it."""

from __future__ import annotations

import json

import pytest

from sim.cli import run_command
from tests.data import shared_data


@pytest.fixture
def trace(tmp_path):
    """Twenty requests of three blocks, sharing the first one; every other one a repeat of the one before."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 1000 * i,
            "input_length": 1500,
            "output_length": 5,
            "hash_ids": [0, i // 2 * 2 + 1, i // 2 * 2 + 2],
        }
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def document(capsys, *arguments) -> dict:
    assert run_command(["cache", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # one document and nothing else


def test_the_document(trace, capsys):
    found = document(
        capsys, trace, "--capacity", "1:3:2", "--capacity", 100, "--eviction", "lru", "--eviction", "fifo"
    )
    assert {
        key: found[key] for key in ("requests", "accesses", "unique_blocks", "block_tokens", "input_tokens")
    } == {
        "requests": 20,
        "accesses": 60,
        "unique_blocks": 21,
        "block_tokens": 512,
        "input_tokens": 30_000,
    }
    cells = [(row["eviction"], row["capacity"], row["hits"]) for row in found["results"]]
    assert cells == [
        ("lru", 1, 0),
        ("lru", 3, 39),
        ("lru", 100, 39),
        ("fifo", 1, 0),
        ("fifo", 3, 34),
        ("fifo", 100, 39),
    ]
    row = found["results"][1]
    assert row["hit_rate"] == 39 / 60
    assert row["leading_run_hits"] == 39
    assert row["leading_run_hit_rate"] == 39 / 60
    assert row["token_hit_rate"] == (10 * 1500 + 9 * 512) / 30_000
    assert found["infinite"]["hits"] == 39
    assert found["lru_capacity_for"]["0.9"] == 3


def test_the_figures_of_the_worked_example(capsys):
    path = shared_data("traces", "mooncake_fast25_conversation.jsonl")
    found = document(
        capsys,
        path,
        "--num-requests",
        500,
        "--capacity",
        5000,
        "--eviction",
        "lru_tail_first",
        "--eviction",
        "length_aware",
    )
    tail_first, length_aware = found["results"]
    assert tail_first["leading_run_hits"] == 1101
    assert length_aware["hits"] == 1572


def test_options_of_a_policy(trace, capsys):
    found = document(
        capsys,
        trace,
        "--capacity",
        100,
        "--eviction",
        "{name: ttl, ttl_s: 0.5}",
        "--eviction",
        "{name: lru_lfu, half_life: inf}",
    )
    expired, lfu = found["results"]
    assert expired["hits"] == 0  # all requests are a second apart
    assert expired["options"] == {"ttl_s": 0.5, "since": "last_use"}
    assert lfu["hits"] == 39
    assert lfu["options"] == {"half_life": "inf"}


def test_other_blocks(trace, capsys):
    found = document(capsys, trace, "--capacity", 1000, "--block-tokens", 16)
    assert found["block_tokens"] == 16
    assert found["accesses"] == 20 * 94
    assert (
        found["results"][0]["hit_tokens"] == 10 * 93 * 16 + 9 * 512
    )  # the last 12 tokens of 1500 are never shared


def test_a_shipped_model(capsys):
    arguments = ("mooncake-conv", "--capacity", 2000, "--num-requests", 300)
    found = document(capsys, *arguments)
    assert found["requests"] == 300
    assert found["infinite"]["hits"] > 0
    assert document(capsys, *arguments, "--seed", 0) == found
    assert document(capsys, *arguments, "--seed", 1) != found


def test_a_table_and_a_sentence(trace, capsys):
    assert run_command(["cache", str(trace), "--capacity", "3"]) == 0
    out = capsys.readouterr().out
    assert "65.00%" in out
    assert "LRU needs 3 blocks (1,536 tokens) for 90% of that" in out


def test_a_trace_in_which_nothing_comes_twice(tmp_path, capsys):
    path = tmp_path / "once.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n')
    assert run_command(["cache", str(path), "--capacity", "3"]) == 0
    assert "no cache can hit" in capsys.readouterr().out


def test_the_document_as_a_file(trace, tmp_path, capsys):
    out = tmp_path / "cache.json"
    expected = document(capsys, trace, "--capacity", 3, "--out", out)
    assert json.loads(out.read_text()) == expected
    assert run_command(["cache", str(trace), "--capacity", "3", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert run_command(["cache", str(trace), "--capacity", "4", "--out", str(out), "--force"]) == 0
    assert json.loads(out.read_text())["results"][0]["capacity"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--capacity"),
        (["--capacity", "0"], "at least 1 block"),
        (["--capacity", "-5"], "at least 1 block"),
        (["--capacity", "many"], "not a number of blocks"),
        (["--capacity", "1:9"], "1000:50000:1000"),
        (["--capacity", "9:1:1"], "upwards"),
        (["--capacity", "1:9:0"], "upwards"),
        (["--capacity", "1:99999999:1"], "100000 caches"),
        (["--capacity", "1" + "0" * 400], "1000000000000 blocks"),
        (["--capacity", "3", "--eviction", "lruu"], "did you mean lru?"),
        (["--capacity", "3", "--eviction", "lru_tail_frist"], "did you mean lru_tail_first?"),
        (["--capacity", "3", "--eviction", "random"], "one of belady"),
        (["--capacity", "3", "--eviction", "{ttl: 3}"], "names no policy"),
        (["--capacity", "3", "--eviction", "{name: [ttl"], "not YAML"),
        (["--capacity", "3", "--eviction", "{name: ttl, ttl_ms: 3}"], "did you mean ttl_s?"),
        (["--capacity", "3", "--eviction", "{name: lru, size: 3}"], "no options"),
        (["--capacity", "3", "--eviction", "{name: ttl, ttl_s: 0}"], "greater than 0"),
        (["--capacity", "3", "--block-tokens", "100"], "does not fit"),
        (["--capacity", "3", "--block-tokens", "0"], "not a block size"),
        (["--capacity", "3", "--num-requests", "0"], "at least 1"),
        (["--capacity", "3", "--num-requests", "21"], "has 20 requests"),
        (["--capacity", "3", "--seed", "1"], "is a file"),
    ],
)
def test_a_mistake_is_one_line(trace, capsys, arguments, message):
    assert run_command(["cache", str(trace), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mooncake-con", "did you mean mooncake-conv?"),
        ("nowhere.jsonl", "neither a file nor a shipped model"),
        ("azure-conv", "no prefix block hashes"),
    ],
)
def test_a_trace_that_will_not_do(name, message, capsys):
    assert run_command(["cache", name, "--capacity", "3"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_failed_requests_are_kept_out_when_asked(tmp_path, capsys):
    path = tmp_path / "failed.jsonl"
    rows = [{"timestamp": i, "input_length": 512, "output_length": i, "hash_ids": [1]} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(["cache", str(path), "--capacity", "3"]) == 2
    assert "--drop-failed" in capsys.readouterr().err
    assert document(capsys, path, "--capacity", 3, "--drop-failed")["requests"] == 2
