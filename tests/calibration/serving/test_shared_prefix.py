"""Loads of shared prefixes: when requests come, and what their prompts have in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.serving.readers.shared_prefix import (
    DRAIN_S,
    GROUPS,
    PROMPTS,
    SharedPrefixLoad,
    Stage,
    prompt_hashes,
)

LOADS = st.builds(
    SharedPrefixLoad,
    stages=st.lists(
        st.builds(Stage, st.integers(1, 20).map(float), st.integers(5, 60).map(float)), min_size=1, max_size=3
    ).map(tuple),
    system_tokens=st.integers(1, 120),
    input_tokens=st.integers(121, 900),
    output_tokens=st.integers(2, 300),
)


@given(LOADS, st.integers(0, 9))
def test_each_stage_sends_its_requests_in_its_time(load, seed):
    arrival_s = load.draw(seed).trace.arrival_ns / 1e9
    masks = load.masks()
    assert np.array_equal(np.sum(masks, axis=0), np.ones(load.requests))  # each request is in one stage
    latest = 0.0
    for stage, mask in zip(load.stages, masks, strict=True):
        times = arrival_s[mask]
        assert times.size == round(stage.rate_rps * stage.duration_s)
        assert times.max() - times.min() <= stage.duration_s
        assert times.min() >= (latest + DRAIN_S - 1e-6 if latest else 0)
        latest = times.max()


def test_gaps_are_those_of_a_poisson_process():
    load = SharedPrefixLoad((Stage(10.0, 2000.0),), 100, 600, 200)
    gaps = np.diff(load.draw(1).trace.arrival_ns)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


@given(st.lists(st.integers(0, PROMPTS - 1), min_size=2, max_size=30), st.integers(0, 200))
def test_prompts_share_what_they_begin_with(prompts, system_tokens):
    lengths = np.full(len(prompts), 250)
    hashes = prompt_hashes(np.array(prompts), lengths, system_tokens)
    assert hashes.is_chained()
    for i, one in enumerate(prompts):
        for j, other in enumerate(prompts[:i]):
            same = int(np.count_nonzero(hashes.of(i) == hashes.of(j)))
            if one == other:
                assert same == hashes.of(i).size
            elif one % GROUPS == other % GROUPS:
                assert same == system_tokens // 16
            else:
                assert same == 0
