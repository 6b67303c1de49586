"""The canonical trace: its laws, exact round trips, block ids at another size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.answers import sequence_hashes
from workloads.errors import InputError
from workloads.expand import expand_hashes
from workloads.readers import read_trace
from workloads.trace import BlockHashes, Trace, Turns
from workloads.writers import losses, write_trace

COLUMNS = ("arrival_ns", "input_tokens", "output_tokens", "session", "tenant", "priority")


@st.composite
def turns_of(draw, session, inputs, outputs):
    """Links within sessions: some wait for the request before, some go on where an earlier one ended."""
    n = len(session)
    continues, predecessor, think = [-1] * n, [-1] * n, [0] * n
    for i in range(n):
        before = [j for j in range(i) if session[j] == session[i] >= 0]
        if before and draw(st.booleans()):
            predecessor[i], think[i] = before[-1], draw(st.integers(0, 10**12))
        shorter = [j for j in before if inputs[j] + outputs[j] <= inputs[i]]
        if shorter and draw(st.booleans()):
            continues[i] = shorter[-1]
    return Turns.build(continues, predecessor, think)


@st.composite
def traces(draw, hashed=None):
    n = draw(st.integers(1, 30))
    column = lambda low, high: draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    inputs = column(1, 2000)
    hashes = None
    if draw(st.booleans()) if hashed is None else hashed:
        counts = [-(-tokens // 512) for tokens in inputs]
        ids = draw(st.lists(st.integers(-(2**62), 2**62), min_size=sum(counts), max_size=sum(counts)))
        hashes = BlockHashes.build(512, counts, ids)
    session = column(-1, 5)
    outputs = column(1, 500)
    turns = draw(turns_of(session, inputs, outputs)) if draw(st.booleans()) else None
    return Trace.build(
        sorted(column(0, 10**15)),
        inputs,
        outputs,
        session=session,
        turns=turns,
        tenant=column(0, 1),
        priority=column(-3, 3),
        tenant_names=("a", "b"),
        hashes=hashes,
        failed=draw(st.integers(0, 5)),
        source=draw(st.text(max_size=5)),
        warnings=draw(st.lists(st.text(max_size=5), max_size=2)),
    )


def same(one, other, columns=COLUMNS):
    for name in columns:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert (one.hashes is None) == (other.hashes is None)
    if one.hashes is not None:
        assert one.hashes.block_tokens == other.hashes.block_tokens
        assert np.array_equal(one.hashes.offsets, other.hashes.offsets)
        assert np.array_equal(one.hashes.ids, other.hashes.ids)
    assert (one.turns is None) == (other.turns is None)
    if one.turns is not None:
        for name in ("continues", "predecessor", "think_ns"):
            assert np.array_equal(getattr(one.turns, name), getattr(other.turns, name))


@given(trace=traces())
def test_parquet_keeps_everything(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("parquet")
    write_trace(trace, folder / "a.parquet", "parquet")
    write_trace(trace, folder / "b.parquet", "parquet")
    back = read_trace(folder / "a.parquet")
    same(trace, back)
    for name in ("tenant_names", "has_arrivals", "failed", "source", "warnings"):
        assert getattr(trace, name) == getattr(back, name)
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


@given(trace=traces(hashed=True))
def test_other_formats_keep_what_they_hold(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("formats")
    plain = ("input_tokens", "output_tokens")
    for name in ("azure", "vidur", "mooncake"):
        path = folder / name
        assert losses(trace, name)
        write_trace(trace, path, name, allow_loss=True)
        back = read_trace(path, format=name)
        kept = trace.arrival_ns - (trace.arrival_ns[0] if name == "azure" else 0)
        assert np.array_equal(back.arrival_ns, kept)
        for column in plain:
            assert np.array_equal(getattr(back, column), getattr(trace, column))
        if name == "mooncake":
            assert np.array_equal(back.hashes.ids, trace.hashes.ids)


def test_parquet_of_others_and_of_the_future_are_refused(tmp_path):
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="but not a trace written by servetwin trace convert"):
        read_trace(path)
    for meta, table, message in [
        ({"schema_version": 3}, {"a": [1]}, "schema version 3; this version reads up to 2"),
        ({"schema_version": 1}, {"a": [1]}, "no column 'arrival_ns'"),
        ({"schema_version": 1}, {"arrival_ns": [0.5]}, "column 'arrival_ns' is double or has nulls"),
        ({"schema_version": 1}, {"arrival_ns": [1, None]}, "column 'arrival_ns' is int64 or has nulls"),
    ]:
        text = {b"servetwin.trace": json.dumps(meta)}
        pq.write_table(pa.table(table).replace_schema_metadata(text), path)
        with pytest.raises(InputError, match=message):
            read_trace(path)


def test_laws_of_a_trace():
    for arrival, inputs, outputs, message in [
        ([1, 0], [1, 1], [1, 1], "sorted in time"),
        ([-1, 0], [1, 1], [1, 1], "non-negative"),
        ([0, 1], [1, 0], [1, 1], "input_tokens must be at least 1"),
        ([0, 1], [1, 1], [1, 0], "output_tokens must be at least 1"),
        ([0, 1], [1], [1, 1], "input_tokens has 1 entries for 2 arrivals"),
        ([0, 1], [1, 1.5], [1, 1], "input_tokens must hold whole numbers"),
    ]:
        with pytest.raises(InputError, match=message):
            Trace.build(arrival, inputs, outputs)
    with pytest.raises(InputError, match=r"tenant codes must be 0\.\.0"):
        Trace.build([0], [1], [1], tenant=[1])
    with pytest.raises(InputError, match="2 hash offsets for 2 requests"):
        Trace.build([0, 0], [1, 1], [1, 1], hashes=BlockHashes.build(16, [1], [1]))


def test_laws_of_turns():
    def trace(continues=(-1, -1, -1), predecessor=(-1, -1, -1), think_ns=(0, 0, 0), session=(7, 7, 8)):
        turns = Turns.build(continues, predecessor, think_ns)
        return Trace.build([0, 0, 0], [4, 9, 9], [1, 1, 1], session=session, turns=turns)

    assert trace((-1, 0, -1), (-1, 0, -1), (0, 5, 0)).turns.waiting == 1
    for links, message in [
        ({"continues": (-1, 1, -1)}, "continues must be -1 or the position of an earlier request"),
        ({"predecessor": (-2, 0, -1)}, "predecessor must be -1 or the position of an earlier request"),
        ({"predecessor": (-1, 0, 1)}, "predecessor must name a request of the same session"),
        (
            {"continues": (-1, 0, -1), "session": (-1, -1, 8)},
            "continues must name a request of the same session",
        ),
        (
            {"predecessor": (-1, 0, 0), "session": (7, 7, 7)},
            "predecessor must name each request at most once",
        ),
        (
            {"continues": (-1, -1, 1), "session": (7, 7, 7)},
            "shorter than the prompt and answer that it continues",
        ),
        ({"think_ns": (0, 3, 0)}, "think_ns must be at least 0, and 0 where there is no predecessor"),
        ({"predecessor": (-1, 0, -1), "think_ns": (0, -3, 0)}, "think_ns must be at least 0"),
        ({"think_ns": (0, 0)}, "think_ns has 2 entries for 3 arrivals"),
    ]:
        with pytest.raises(InputError, match=message):
            trace(**links)


def test_turns_without_waits_keep_what_prompts_repeat():
    turns = Turns.build([-1, 0], [-1, 0], [0, 5]).without_waits()
    assert (turns.continues.tolist(), turns.waiting, turns.think_ns.tolist()) == ([-1, 0], 0, [0, 0])


def test_blocks_that_contradict_the_turns_are_refused():
    turns = Turns.build([-1, 0], [-1, -1], [0, 0])
    hashes = BlockHashes.build(4, [1, 2], [1, 2, 3])
    trace = Trace.build([0, 0], [4, 8], [1, 1], session=[0, 0], hashes=hashes, turns=turns)
    with pytest.raises(InputError, match="request 1 continues request 0, but their prefix blocks differ"):
        sequence_hashes(trace, 4)


def test_empty_and_single():
    assert len(Trace.build([], [], [])) == 0
    assert Trace.build([], [], []).duration_ns == 0
    assert Trace.build([5], [1], [1]).head(10).arrival_ns.tolist() == [5]


@given(trace=traces(hashed=True), data=st.data())
def test_select_takes_rows_with_their_blocks(trace, data):
    at = data.draw(st.lists(st.integers(0, len(trace) - 1), unique=True).map(sorted))
    some = trace.select(at)
    assert some.arrival_ns.tolist() == trace.arrival_ns[at].tolist()
    for new, old in enumerate(at):
        assert np.array_equal(some.hashes.of(new), trace.hashes.of(old))
        if trace.turns is not None:
            for name in ("continues", "predecessor"):
                link = getattr(trace.turns, name)[old]
                assert getattr(some.turns, name)[new] == (at.index(link) if link in at else -1)
            waits = some.turns.predecessor[new] >= 0
            assert some.turns.think_ns[new] == (trace.turns.think_ns[old] if waits else 0)
    if some.turns is not None:
        some.turns.check(some)


def test_columns_are_read_only():
    trace = Trace.build([0], [1], [1])
    with pytest.raises(ValueError, match="read-only"):
        trace.input_tokens[0] = 2


# --- block ids at another size


def trace_of(lengths, ids, block_tokens=512):
    counts = [len(run) for run in ids]
    flat = [block for run in ids for block in run]
    hashes = BlockHashes.build(block_tokens, counts, flat)
    return Trace.build([0] * len(lengths), lengths, [1] * len(lengths), hashes=hashes)


def test_512_to_16_by_hand():
    trace = expand_hashes(trace_of([512, 550, 550], [[7], [7, 8], [7, 8]]), 16)
    first, second, third = (trace.hashes.of(i).tolist() for i in range(3))
    assert first == list(range(7 * 32, 8 * 32))
    assert second[:34] == [*first, 8 * 32, 8 * 32 + 1]
    assert len(second) == 35
    assert third[:34] == second[:34]
    assert third[34] != second[34], "the trailing partial block is never shared"


def test_16_to_64_takes_the_id_of_the_last_part():
    trace = expand_hashes(trace_of([80, 70], [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], 16), 64)
    first, second = trace.hashes.of(0).tolist(), trace.hashes.of(1).tolist()
    assert first[0] == second[0] == 4
    assert first[1] != second[1]


@given(trace=traces(hashed=True), block_tokens=st.sampled_from([1, 4, 16, 128, 256, 512]))
def test_every_size_covers_every_prompt(trace, block_tokens):
    small = expand_hashes(trace, block_tokens)
    counts = np.diff(small.hashes.offsets)
    assert np.array_equal(counts, -(-trace.input_tokens // block_tokens))
    assert small.hashes.block_tokens == block_tokens


@given(trace=traces(hashed=True))
def test_equal_source_blocks_stay_equal_and_different_ones_different(trace):
    small = expand_hashes(trace, 128)
    for i in range(len(trace)):
        for j in range(len(trace)):
            a, b = trace.hashes.of(i), trace.hashes.of(j)
            shared = min(trace.input_tokens[i], trace.input_tokens[j]) // 512
            for block in range(shared):
                parts = slice(block * 4, block * 4 + 4)
                equal = small.hashes.of(i)[parts].tolist() == small.hashes.of(j)[parts].tolist()
                assert equal == (a[block] == b[block])


def test_sizes_that_do_not_fit():
    trace = trace_of([512], [[7]])
    with pytest.raises(InputError, match="block_tokens: 48 does not fit blocks of 512 tokens"):
        expand_hashes(trace, 48)
    with pytest.raises(InputError, match="block_tokens: 0 is not a block size"):
        expand_hashes(trace, 0)
    with pytest.raises(InputError, match="do not stand for prefixes"):
        expand_hashes(trace_of([32, 32], [[1, 2], [3, 2]], 16), 32)
    with pytest.raises(InputError, match="request 0 has 1 block ids for 1000 tokens"):
        expand_hashes(trace_of([1000], [[1]]), 16)
    assert expand_hashes(Trace.build([0], [1], [1]), 16).hashes is None
