"""Access patterns: what they read by definition, that it depends on nothing else, and recordings of it."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sim.kv.access import AnyAccess, Full, Recorded, SlidingWindow, TopK
from sim.kv.access.hashing import hashed, uniform
from sim.kv.access.heat_map import heat_map
from sim.kv.access.recording import Header, Recording, sample
from sim.kv.access.recording_files import read_recording, write_recording
from workloads.errors import ConfigError, InputError

patterns = st.one_of(
    st.just(Full()),
    st.builds(
        SlidingWindow,
        window_tokens=st.integers(1, 90),
        sink_tokens=st.integers(0, 20),
        full_groups=st.sampled_from([(), (0,), (1, 2)]),
    ),
    st.builds(
        TopK,
        fraction=st.sampled_from([None, 0.0, 0.3, 1.0]),
        zipf_exponent=st.sampled_from([0.0, 1.0, 3.0]),
        churn=st.sampled_from([0.0, 0.05, 1.0]),
        locality_blocks=st.integers(1, 5),
        near_tokens=st.integers(1, 40),
        sink_tokens=st.integers(0, 20),
    ),
    st.builds(TopK, blocks=st.integers(0, 12)),
)
GROUPS = 3


def pages(reads) -> list[tuple[int, int]]:
    return list(zip(reads.group.tolist(), reads.block.tolist(), strict=True))


@settings(deadline=None)
@given(patterns, st.integers(1, 9), st.integers(0, 2**63), st.integers(0, 10**9), st.integers(1, 300))
def test_reads_are_pages_of_the_sequence_with_shares_of_mass(pattern, block_size, seed, sequence, context):
    model = pattern.build(GROUPS, block_size, seed)
    reads = model.reads(sequence, context)
    there = pages(reads)
    assert there == sorted(set(there))
    assert reads.block.max() == -(-context // block_size) - 1  # the query's own block is always read
    assert reads.block.min() >= 0
    assert (reads.weight >= 0).all()
    assert (np.bincount(reads.group, reads.weight) <= 1 + 1e-9).all()
    assert set(pages(model.known(sequence, context))) <= set(there)


@settings(deadline=None)
@given(
    patterns,
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 200)), min_size=1, max_size=8),
    st.randoms(),
)
def test_reads_depend_on_seed_sequence_and_context_alone(pattern, questions, random):
    model = pattern.build(GROUPS, 4, 7)
    first = {question: model.reads(*question) for question in questions}
    random.shuffle(questions)
    again = pattern.build(GROUPS, 4, 7)
    for question in questions:
        reads = again.reads(*question)
        for column in ("group", "block", "weight"):
            assert np.array_equal(getattr(reads, column), getattr(first[question], column))


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 60), st.integers(0, 30))
def test_a_sliding_window_reads_the_pages_of_its_tokens(context, block_size, window, sinks):
    model = SlidingWindow(window_tokens=window, sink_tokens=sinks, full_groups=(1,)).build(2, block_size, 0)
    tokens = [t for t in range(context) if t < sinks or t >= context - window]
    own = {t // block_size for t in tokens}
    everything = {t // block_size for t in range(context)}
    assert pages(model.reads(3, context)) == sorted([(0, b) for b in own] + [(1, b) for b in everything])


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(0, 30), st.integers(1, 50), st.integers(0, 20), st.integers(0, 99))
def test_top_k_reads_the_heaviest_beside_the_nearest_and_the_sinks(context, k, near, sinks, sequence):
    config = TopK(blocks=k, near_tokens=near, sink_tokens=sinks, churn=0.3, locality_blocks=2)
    model = config.build(2, 8, 5)
    log_mass = model.log_mass(sequence, context)
    always = {t // 8 for t in range(context) if t < sinks or t >= context - near}
    expected = []
    for group in range(2):
        others = sorted(set(range(log_mass.shape[1])) - always, key=lambda b: -log_mass[group, b])
        expected += [(group, b) for b in always | set(others[:k])]
    reads = model.reads(sequence, context)
    assert pages(reads) == sorted(expected)
    mass = np.exp(log_mass) / np.exp(log_mass).sum(axis=1, keepdims=True)
    assert np.allclose(reads.weight, mass[reads.group, reads.block])


def test_uniform_numbers_are_uniform_and_coordinates_independent():
    u = uniform(hashed(hashed(3, np.arange(100)[:, None]), np.arange(1000)))
    assert 0 < u.min() < u.max() < 1
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 44  # chi-squared with 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01


def test_importance_is_exponential_at_its_knots_so_that_mass_falls_like_a_zipf_law():
    config = TopK(decay=0.0, locality_blocks=1, churn=1.0, zipf_exponent=1.0)
    model = config.build(1, 16, 0)
    # With a churn of 1 and one knot a block, a block is at a knot where its phase says so; half-way it is a mean of
    # two: so the mean is that of an exponential, and the variance between that of one knot and that of two.
    log_mass = np.concatenate([model.log_mass(sequence, 16 * 4000) for sequence in range(8)], axis=None)
    assert abs(log_mass.mean() - 1.0) < 0.02
    assert abs(log_mass.var() - 2 / 3) < 0.03  # mean over f of f^2 + (1 - f)^2


def test_more_churn_brings_more_new_pages_and_none_brings_none():
    def share_of_new(churn: float) -> float:
        model = TopK(churn=churn, decay=0.0).build(4, 16, 1)
        steps = [set(pages(model.reads(0, context))) for context in range(8001, 8016)]
        new = sum(len(after - before) for before, after in pairwise(steps))
        return new / sum(map(len, steps))

    assert share_of_new(0.0) == 0.0
    assert share_of_new(0.01) < share_of_new(0.05) < share_of_new(0.5)


def test_a_larger_exponent_gathers_mass_on_fewer_pages():
    def heaviest(exponent: float) -> float:
        return float(TopK(zipf_exponent=exponent, decay=0.0).build(4, 16, 1).reads(0, 8000).weight.max())

    assert heaviest(0.0) < heaviest(0.5) < heaviest(1.0) < heaviest(2.0)


def test_neighbours_share_importance_as_far_as_locality_says():
    def correlation(locality: int) -> float:
        model = TopK(decay=0.0, locality_blocks=locality).build(4, 16, 1)
        log_mass = model.log_mass(0, 64_000)
        return float(np.corrcoef(log_mass[:, :-1].ravel(), log_mass[:, 1:].ravel())[0, 1])

    assert abs(correlation(1)) < 0.03
    assert 0.6 < correlation(4) < correlation(16) < 1


def test_low_layers_look_far_back_and_high_layers_hug_the_diagonal():
    model = TopK().build(8, 16, 3)
    heat = heat_map(model, [(sequence, 4096 + 7 * step) for sequence in range(8) for step in range(10)])
    assert (np.diff(heat.reads_beyond(1024)) < 0).sum() >= 5
    assert heat.reads_beyond(1024)[0] > 4 * heat.reads_beyond(1024)[-1]
    assert heat.reads_beyond(128)[0] > 0.5
    near = heat.mass[:, heat.from_tokens < 32].sum(axis=1) / heat.mass.sum(axis=1)
    assert near[-1] > 5 * near[0]


def test_the_heat_map_counts_every_read_once_at_its_distance():
    model = TopK().build(4, 16, 3)
    steps = [(sequence, 500 + 40 * step) for sequence in range(3) for step in range(5)]
    heat = heat_map(model, steps)
    expected = np.zeros_like(heat.pages)
    for sequence, context in steps:
        for group, block in pages(model.reads(sequence, context)):
            distance = (-(-context // 16) - 1 - block) * 16
            expected[group, np.flatnonzero(heat.from_tokens <= distance)[-1]] += 1
    assert np.array_equal(heat.pages, expected)
    assert heat.from_tokens.tolist()[:4] == [0, 16, 32, 64]


# Recordings.


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_recording_replays_what_was_recorded(tmp_path, suffix):
    model = TopK(churn=0.5).build(4, 16, 1)
    path = tmp_path / f"reads.{suffix}"
    write_recording(path, sample(model, sequence=9, context_tokens=700, steps=30))
    replay = Recorded(path=str(path)).build(4, 16, 0)
    for context in range(700, 730):
        recorded, reads = model.reads(9, context), replay.reads(123, context)
        assert pages(reads) == pages(recorded)
        assert np.array_equal(reads.weight, recorded.weight)
    again = replay.reads(123, 730)  # from the first step on, its pages as far from the end
    last, shift = -(-730 // 16) - 1, -(-730 // 16) - -(-700 // 16)
    expected = sorted((g, b + shift if b else 0) for g, b in pages(model.reads(9, 700)))
    assert sorted(pages(again)) == expected
    assert max(b for _, b in expected) == last


def test_a_recording_in_a_shorter_sequence_leaves_out_what_lies_before_its_start(tmp_path):
    header = Header(block_size=4, context_tokens=40, num_layers=1)
    rows = np.array([0, 2, 7, 8, 9])
    path = tmp_path / "reads.jsonl"
    write_recording(path, Recording(header, 0 * rows, 0 * rows, rows, np.full(5, 0.2)))
    replay = Recorded(path=str(path)).build(1, 4, 0)
    assert pages(replay.reads(0, 40)) == [(0, 0), (0, 2), (0, 7), (0, 8), (0, 9)]
    assert pages(replay.reads(0, 10)) == [(0, 0), (0, 1), (0, 2)]  # of 3 pages
    assert pages(replay.reads(0, 12)) == [(0, 0), (0, 1), (0, 2)]
    assert pages(replay.known(0, 40)) == []


def test_a_group_reads_what_any_of_its_layers_read_with_their_mean_weight(tmp_path):
    header = Header(block_size=4, context_tokens=40, num_layers=4)
    columns = np.array([(0, 0, 3), (0, 1, 3), (0, 1, 9), (0, 3, 9)]).T
    path = tmp_path / "reads.parquet"
    write_recording(path, Recording(header, *columns, np.array([0.5, 0.1, 0.4, 1.0])))
    reads = Recorded(path=str(path)).build(2, 4, 0).reads(0, 40)
    assert pages(reads) == [(0, 3), (0, 9), (1, 9)]
    assert reads.weight.tolist() == pytest.approx([0.3, 0.2, 0.5])


HEADER = {"version": 1, "block_size": 4, "context_tokens": 40, "num_layers": 2}
ROW = {"step": 0, "layer": 0, "page": 1, "weight": 0.5}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "empty; the first line"),
        (["nonsense"], ":1: not JSON"),
        ([[1]], ":1: not a JSON object"),
        ([{**HEADER, "version": 2}], ":1: version is 2"),
        ([{**HEADER, "block_size": 0}, ROW], ":1: block_size is 0; give a whole number from 1"),
        ([{**HEADER, "num_layers": True}, ROW], ":1: num_layers is True"),
        ([{**HEADER, "heads": 0}, ROW], ":1: heads is 0; give a whole number from 1"),
        ([{**HEADER, "heads": 3}, ROW], ":1: heads is 3; it must divide num_layers, 2"),
        ([{**HEADER, "source": 7}, ROW], ":1: source is 7; give words"),
        ([{**HEADER, "random_weights": "no"}, ROW], ":1: random_weights is 'no'; give true, false or null"),
        ([HEADER], "no rows"),
        ([HEADER, ROW, "{"], ":3: not JSON"),
        ([HEADER, ROW, {**ROW, "page": "2"}], ":3: page is '2'; give a whole number"),
        ([HEADER, {"step": 0}], ":2: layer is None"),
        ([HEADER, ROW, {**ROW, "layer": 2}], ":3: layer is 2 in row 1; it must be 0 to 1"),
        ([HEADER, {**ROW, "page": 10}], ":2: page is 10 in row 0"),
        ([HEADER, {**ROW, "step": -1}], ":2: step is -1"),
        ([HEADER, {**ROW, "weight": 1.5}], ":2: weight is 1.5 in row 0; it must be 0 to 1"),
        ([HEADER, {**ROW, "weight": float("nan")}], ":2: weight is nan"),
        ([HEADER, ROW, {**ROW, "step": 2}], "step 1 has no rows"),
        ([HEADER, ROW, ROW], "step 0, layer 0, page 1 stands twice"),
    ],
)
def test_what_is_wrong_with_lines_is_said_in_one_line(tmp_path, lines, message):
    path = tmp_path / "reads.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    with pytest.raises(InputError) as error:
        read_recording(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def table_of(**changes) -> pa.Table:
    columns = {**{name: [value] for name, value in ROW.items()}, **changes}
    columns = {name: values for name, values in columns.items() if values is not None}
    return pa.table(columns).replace_schema_metadata({b"servetwin.kv_access": json.dumps(HEADER)})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of().replace_schema_metadata(None), "no metadata 'servetwin.kv_access'"),
        (table_of(weight=None), "column 'weight' is missing"),
        (table_of(page=["x"]), "column 'page' holds no numbers that fit"),
        (table_of(page=pa.array([None], pa.int32())), "column 'page' has 1 empty values"),
        (table_of(layer=[5]), "layer is 5 in row 0"),
    ],
)
def test_what_is_wrong_with_parquet_is_said_in_one_line(tmp_path, table, message):
    path = tmp_path / "reads.parquet"
    pq.write_table(table, path)
    with pytest.raises(InputError, match=message) as error:
        read_recording(path)
    assert "\n" not in str(error.value)


def test_files_that_are_none_and_recordings_that_do_not_match(tmp_path):
    path = tmp_path / "reads.parquet"
    with pytest.raises(InputError, match="no such file"):
        read_recording(path)
    path.write_bytes(b"abc")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_recording(path)
    with pytest.raises(InputError, match=r"is a \.parquet or \.jsonl file"):
        read_recording(tmp_path / "reads.csv")
    write_recording(path, sample(Full().build(4, 16, 0), 0, 100, 2))
    with pytest.raises(ConfigError, match="recorded with blocks of 16 tokens, not of 8"):
        Recorded(path=str(path)).build(4, 8, 0)
    with pytest.raises(ConfigError, match="its 4 layers do not fall into 3 equal groups"):
        Recorded(path=str(path)).build(3, 16, 0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"name": "top_k", "fraction": 0.5, "blocks": 3}, "either fraction or blocks"),
        ({"name": "top_k", "fraction": 1.5}, "fraction"),
        ({"name": "sliding_window", "full_groups": [1, 1]}, "names a group twice"),
        ({"name": "recorded"}, "path"),
        ({"name": "full", "window": 3}, "window"),
    ],
)
def test_configs_refuse_what_makes_no_sense(raw, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(AnyAccess).validate_python(raw)


def test_a_group_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="full_groups: there is no group 4; groups are 0 to 3"):
        SlidingWindow(full_groups=(4,)).build(4, 16, 0)
