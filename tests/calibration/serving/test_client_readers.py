"""One run in four formats: every reader gives what the definitions say."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.simulation import simulate
from tests.calibration.serving.client_files import (
    SCENARIO,
    known_run,
)
from tests.calibration.serving.client_formats import FORMATS, by_definition, each_format, read_one
from workloads.errors import InputError
from workloads.trace import NS_PER_S


@each_format
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_every_format_gives_the_metrics_of_the_definitions(tmp_path_factory, reader, write, seed, count):
    known = known_run(seed, count)
    run = read_one(reader, write(tmp_path_factory.mktemp("run"), known))
    (part,) = run.parts
    assert dict(part.measured) == pytest.approx(by_definition(known), rel=1e-4, nan_ok=True)
    assert part.apart is None
    trace = run.workload.trace
    assert trace.input_tokens.tolist() == known.inputs
    assert trace.output_tokens.tolist() == known.outputs
    arrival = np.array(known.sent) - known.sent[0]
    np.testing.assert_allclose(trace.arrival_ns / NS_PER_S, arrival, atol=1e-6)


@each_format
def test_recognised_by_content_and_by_no_other_reader(tmp_path, reader, write):
    path = write(tmp_path, known_run(count=3)).rename(tmp_path / "anything.json")
    assert [other for other, _ in FORMATS.values() if other.recognises(path)] == [reader]
    assert not reader.recognises(tmp_path)
    assert not reader.recognises(tmp_path / "nothing.json")


@each_format
def test_the_scenario_runs_on_its_own(tmp_path, reader, write):
    """What a run's scenario says is what its workload holds: the file can be replayed by anyone."""
    run = read_one(reader, write(tmp_path, known_run(count=6)))
    np.testing.assert_array_equal(
        simulate(run.scenario).requests.e2el_ns,
        simulate(run.scenario, workload=run.workload).requests.e2el_ns,
    )


@each_format
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_file_is_an_error_of_one_line_or_still_a_run(tmp_path_factory, reader, write, data):
    """One value of one record replaced by something else; nothing but InputError ever comes out."""
    path = write(tmp_path_factory.mktemp("run"), known_run(count=4))
    lines = path.read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    document = json.loads(lines[at])
    node, key = document, None
    for _ in range(data.draw(st.integers(1, 7))):
        keys = (
            list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        )
        if not keys:
            break
        parent, key = node, data.draw(st.sampled_from(keys))
        node = parent[key]
    parent[key] = data.draw(
        st.sampled_from([None, [], {}, "x", -1, 1e300, True, [1], {"value": 3}, [[]], float("nan"), 0, 3.5])
    )
    lines[at] = json.dumps(document)
    path.write_text("\n".join(lines))
    said = None
    try:
        assert reader.read(path, SCENARIO)
    except InputError as error:
        said = str(error)
    assert said is None or ("\n" not in said and str(path) in said)
