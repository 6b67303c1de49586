"""Closed loops, known by what was in flight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.serving.readers.client_run import constant_in_flight
from tests.calibration.serving.client_files import (
    closed_run,
    known_run,
)
from tests.calibration.serving.client_formats import FORMATS, read_one


def times_ns(run):
    sent = np.rint(np.array(run.sent) * 1e9).astype(np.int64)
    return sent, sent + np.rint(np.array(run.latency) * 1e9).astype(np.int64)


@pytest.mark.parametrize(("reader", "write"), [FORMATS["aiperf"], FORMATS["inference-perf"]])
def test_a_closed_loop_shows_where_the_file_does_not_say(tmp_path, reader, write):
    run = read_one(reader, write(tmp_path, closed_run(4, 40)))
    assert run.workload.max_concurrency == 4
    assert any("the file does not say how it sent" in caveat for caveat in run.caveats)


@given(seats=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_number_in_flight_of_a_closed_loop(seats, seed):
    sent, ended = times_ns(closed_run(seats, 4 * seats + 8, seed))
    shuffled = np.random.default_rng(seed).permutation(sent.size)
    assert constant_in_flight(sent[shuffled], ended[shuffled]) == seats


@given(seed=st.integers(0, 1000), rate=st.sampled_from([0.05, 0.5, 4.0, 40.0]), count=st.integers(1, 100))
def test_a_poisson_stream_is_no_closed_loop(seed, rate, count):
    assert constant_in_flight(*times_ns(known_run(seed, count, rate=rate))) is None
