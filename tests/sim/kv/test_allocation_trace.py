"""Allocation traces: what a file may say, and what allocators make of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cli import run_command
from sim.errors import ConfigError
from sim.kv.allocators.arena import Arena
from sim.kv.allocators.contiguous import Contiguous
from sim.kv.allocators.grow import Grow
from sim.kv.allocators.paged import Paged
from sim.kv.replay.allocation_replay import AllocationSeries, as_recorded, build_for, replay
from sim.kv.replay.allocation_trace import AllocationTrace, read_allocations, write_allocations
from workloads.errors import InputError, TraceFormatError

# Two of 300 bytes with one of 100 between them; the first is freed, and 400 come that do not fit its place.
CSV = """\
time_s,op,id,bytes,address
0,alloc,a,300,7000
0.5,alloc,b,100,7300
0.5,alloc,c,300,7400
1,free,a,,
2,alloc,a,400,7700
4,free,b,100,
4,free,c,,
"""


@pytest.fixture
def path(tmp_path) -> Path:
    target = tmp_path / "trace.csv"
    target.write_text(CSV)
    return target


@st.composite
def traces(draw) -> AllocationTrace:
    """Any order of allocs and frees, in any times, without addresses."""
    events, sizes, live = [], [], []
    time_ns = 0
    for _ in range(draw(st.integers(1, 25))):
        time_ns += draw(st.sampled_from([0, 1, 1000]))
        if live and draw(st.booleans()):
            events.append((time_ns, False, live.pop(draw(st.integers(0, len(live) - 1)))))
        else:
            events.append((time_ns, True, len(sizes)))
            live.append(len(sizes))
            sizes.append(draw(st.integers(1, 300)))
    times, allocs, items = (np.array(column) for column in zip(*events, strict=True))
    return AllocationTrace(times, allocs, items, np.array(sizes))


configs = st.sampled_from(
    [
        Paged(),
        Contiguous(reserve="exact"),
        Contiguous(reserve="max", placement="best_fit"),
        Contiguous(reserve="exact", placement="buddy"),
        Arena(reserve="exact", alignment_tokens=16),
        Grow(step_tokens=32),
    ]
)


def test_a_trace_is_read(path):
    trace = read_allocations(path)
    assert trace.time_ns.tolist() == [0, 500_000_000, 500_000_000, 10**9, 2 * 10**9, 4 * 10**9, 4 * 10**9]
    assert trace.is_alloc.tolist() == [True, True, True, False, True, False, False]
    assert trace.item.tolist() == [0, 1, 2, 0, 3, 1, 2]
    assert trace.num_bytes.tolist() == [300, 100, 300, 400]
    assert trace.address is not None
    assert trace.address.tolist() == [7000, 7300, 7400, 7700]
    assert trace.peak_bytes == 800


@given(trace=traces(), suffix=st.sampled_from([".csv", ".jsonl"]), placed=st.booleans())
def test_what_is_written_is_read_again(trace, suffix, placed, tmp_path_factory):
    if placed:
        trace = AllocationTrace(
            trace.time_ns, trace.is_alloc, trace.item, trace.num_bytes, trace.num_bytes * 1000
        )
    target = tmp_path_factory.mktemp("traces") / f"trace{suffix}"
    write_allocations(target, trace)
    again = read_allocations(target)
    assert {k: v if v is None else v.tolist() for k, v in vars(again).items()} == {
        k: v if v is None else v.tolist() for k, v in vars(trace).items()
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-1,alloc,x,5,0", "time_s: '-1' is not a time"),
        ("nan,alloc,x,5,0", "time_s: 'nan' is not a time"),
        ("3,alloc,x,5,0", "time_s: 3 is before the row above"),
        ("5,malloc,x,5,0", "op: 'malloc' is neither alloc nor free"),
        ("5,alloc,a,5,0", "id: a is in use"),
        ("5,free,x,,", "id: x is not in use"),
        ("5,free,a,399,", "bytes: 399, but a was allocated with 400"),
        ("5,alloc,x,0,0", "bytes: '0' is not a whole number of bytes from 1"),
        ("5,alloc,x,1.5,0", "bytes: '1.5'"),
        ("5,alloc,x,,0", "bytes: None"),
        ("5,alloc,x,5,", "address: give it for every alloc or for none"),
        ("5,alloc,x,5,-4", "address: '-4' is not a whole number of bytes from 0"),
        ("5,alloc,,5,0", "id: None names nothing"),
        ("5,alloc,x", "3 values for the 5 columns"),
        ('5,alloc,"x,5,0', "not CSV"),
    ],
)
def test_a_bad_row_is_named_with_its_line(path, line, message):
    path.write_text(CSV + line + "\n")
    with pytest.raises(TraceFormatError) as caught:
        read_allocations(path)
    assert caught.value.line == 9
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", ":1: time_s is missing"),
        ("t.csv", "time_s,op,id,bytes\n", "no events"),
        ("t.csv", "time_s,op,id,size\n", "bytes is missing"),
        ("t.csv", "time_s,op,id,bytes,stream\n", "'stream' is unknown"),
        ("t.jsonl", "[1]\n", ":1: not an object"),
        ("t.jsonl", "{\n", ":1: not JSON"),
        ("t.jsonl", '\n{"op": "alloc", "id": 1}\n', ":2: time_s is missing"),
        ("t.jsonl", '{"time_s": true, "op": "alloc", "id": 1, "bytes": 4}', "time_s: True"),
        ("t.jsonl", '{"time_s": 0, "op": "alloc", "id": [], "bytes": 4}', "id: [] names nothing"),
        ("t.jsonl", '{"time_s": 0, "op": "alloc", "id": 1, "bytes": 4.5}', "bytes: 4.5"),
        ("t.txt", "", "is a .csv or .jsonl file"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, message):
    target = tmp_path / name
    target.write_text(text)
    with pytest.raises(InputError) as caught:
        read_allocations(target)
    assert message in str(caught.value)


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_allocations(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"time_s,op,id,bytes\n\xff\xfe")
    with pytest.raises(TraceFormatError, match="not UTF-8"):
        read_allocations(tmp_path / "binary.csv")


def test_first_fit_by_hand(path):
    found = replay(
        read_allocations(path), build_for(Contiguous(reserve="exact"), read_allocations(path), 1000, 100)
    )
    assert found.used.tolist() == [300, 400, 700, 400, 400, 300, 0]
    assert found.stored.tolist() == found.used.tolist()
    # Free before the fifth event: 0 to 300 and 700 to 1000; 400 bytes fit nowhere.
    assert found.largest_free.tolist() == [700, 600, 300, 300, 300, 400, 1000]
    assert found.failures.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert found.fragmentation.tolist() == [0, 0, 0, 0.5, 0.5, 3 / 7, 0]
    # Half of it free in pieces for 3 of 4 seconds.
    assert found.summary()["fragmentation_mean"] == pytest.approx(0.5 * 3 / 4)
    assert found.summary()["failed"] == 1


def test_the_programs_own_addresses(path):
    found = replay(read_allocations(path), as_recorded(read_allocations(path)))
    assert found.capacity_bytes == 1100
    assert found.used.tolist() == [300, 400, 700, 400, 800, 700, 400]
    assert found.largest_free.tolist() == [800, 700, 400, 400, 300, 400, 700]
    assert found.failures.tolist() == [0] * 7
    narrow = replay(read_allocations(path), as_recorded(read_allocations(path), 1000))
    assert narrow.failures.tolist() == [0, 0, 0, 0, 1, 1, 1]
    with pytest.raises(ConfigError, match="names no addresses"):
        as_recorded(AllocationTrace(np.zeros(1), np.ones(1, bool), np.zeros(1, int), np.ones(1, int)))


@given(trace=traces(), config=configs, capacity=st.integers(64, 4000), unit=st.sampled_from([1, 8, 64]))
def test_every_series_adds_up(trace, config, capacity, unit):
    try:
        allocator = build_for(config, trace, capacity, unit)
    except ConfigError:
        assert config.name == "contiguous"
        return
    found = replay(trace, allocator)
    live: set[int] = set()
    failed = 0
    for at, (_, is_alloc, item) in enumerate(trace):
        if is_alloc and found.failures[at] == failed:
            live.add(item)
        failed = found.failures[at]
        if not is_alloc:
            live.discard(item)
        assert found.stored[at] == sum(int(trace.num_bytes[item]) for item in live)
    assert np.all(np.diff(found.failures) >= 0)
    assert np.all(found.stored <= found.used)
    assert np.all(found.used <= found.capacity_bytes)
    assert np.all((found.fragmentation >= 0) & (found.fragmentation <= 1))
    assert np.all(found.largest_free + found.used <= found.capacity_bytes)
    if config.name == "paged":
        assert np.all(found.fragmentation == 0)


def test_what_is_asked_for_at_one_time_is_freed_at_one_time(path):
    memory = build_for(Arena(reserve="exact", alignment_tokens=100), read_allocations(path), 2000, 100)
    assert replay(read_allocations(path), memory).used.tolist() == [300, 400, 700, 400, 800, 800, 400]


def test_means_are_over_time_or_over_events_where_no_time_passes():
    times = np.array([0, 0, 10, 30])
    series = AllocationSeries(10, times, *(np.zeros(4, dtype=np.int64) for _ in range(4)))
    assert series.mean(np.array([9.0, 1.0, 4.0, 100.0])) == pytest.approx((1 * 10 + 4 * 20) / 30)
    still = AllocationSeries(10, times * 0, *(np.zeros(4, dtype=np.int64) for _ in range(4)))
    assert still.mean(np.array([1.0, 2.0, 3.0, 6.0])) == 3.0


def test_the_command(path, tmp_path, capsys):
    out = tmp_path / "found.json"
    arguments = ["--allocator", "{name: contiguous, reserve: exact}", "--allocator", "recorded"]
    code = run_command(
        ["allocations", str(path), *arguments, "--capacity", "1100", "--unit", "100", "--json"]
    )
    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert {key: document[key] for key in ("events", "allocations", "peak_bytes")} == {
        "events": 7,
        "allocations": 4,
        "peak_bytes": 800,
    }
    assert [row["peak_used_bytes"] for row in document["results"]] == [800, 800]
    assert [row["failed"] for row in document["results"]] == [0, 0]
    assert run_command(["allocations", str(path), *arguments, "--capacity", "1e3", "--out", str(out)]) == 0
    assert "F mean" in capsys.readouterr().out
    series = json.loads(out.read_text())["results"][1]["series"]
    assert series["used_bytes"] == [300, 400, 700, 400, 400, 300, 0]
    assert series["failed"][-1] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--allocator", "pagd", "--capacity", "100"], "--allocator: "),
        (["--allocator", "{name: grow, step: 3}", "--capacity", "100"], "did you mean step_tokens?"),
        (["--allocator", "paged"], "--capacity: paged needs bytes of memory; the trace uses 800"),
        (["--allocator", "paged", "--capacity", "0.5"], "--capacity 0.5: not a whole number"),
        (["--allocator", "paged", "--capacity", "100"], "--capacity 100: less than one unit of 512"),
        (["--allocator", "paged", "--capacity", "4096", "--unit", "0"], "--unit 0: give at least 1 byte"),
    ],
)
def test_bad_arguments_are_one_line(path, capsys, arguments, message):
    assert run_command(["allocations", str(path), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
