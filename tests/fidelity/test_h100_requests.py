"""Laws of recorded requests: found again where they are known, and on experiments that were left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.serving.readers import per_request
from tests.data import shared_data
from tests.fidelity.h100_requests import Stage, _timeline, stages_of, step_law, waits, way_law


def known_stage(name, law, way, rng, size=300):
    kv_tokens, kv_then = rng.uniform(5e3, 60e3, (2, size))
    prompts, running = rng.uniform(0, 0.3, size), rng.integers(0, 90, size)
    step = law[0] + law[1] * kv_then / 1e3
    rate_per_ms = 0.01
    own = law[2] * (1 + 1.5 * rate_per_ms * step)
    return Stage(
        name,
        name,
        law[0] + law[1] * kv_tokens / 1e3 + law[2] * prompts,
        kv_tokens,
        prompts,
        2.5 * step + own + way[0] + way[1] * running + rng.uniform(-0.5, 0.5, size) * step,
        kv_then,
        running.astype(float),
        rate_per_ms,
    )


def test_known_laws_are_found():
    rng = np.random.default_rng(0)
    law, way = np.array([6.0, 0.2, 1.5]), (5.0, 0.06)
    stages = [known_stage(name, law, way, rng, 3000) for name in ("a", "b")]
    assert step_law(stages) == pytest.approx(law, rel=1e-9)
    assert way_law(stages, law) == pytest.approx(way, rel=0.15)
    assert np.mean(waits(stages[0], law)) == pytest.approx(5 + 0.06 * stages[0].running.mean(), abs=0.5)


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(2, 400), st.integers(1, 900)), min_size=1, max_size=8))
def test_the_timeline_holds_each_request_for_as_long_as_it_decodes(requests):
    begins, lasts, prompts = (np.array(column, dtype=float) for column in zip(*requests, strict=True))
    ends = begins + lasts
    running, kv_tokens = _timeline(begins, ends, prompts, np.full(len(requests), 0.1))
    assert running.sum() == (ends.astype(int) - begins.astype(int)).sum()
    assert (kv_tokens >= prompts.min() * running - 0.1 * len(requests) - 1e-6).all()
    assert kv_tokens[-1] == pytest.approx(0, abs=1e-6)


def test_experiments_left_out_follow_the_laws_of_the_others():
    """Time per token within 2%, TTFT within 3% at every stage: the laws are the machine's, not an experiment's."""
    folder = shared_data("vllm_h100_perrequest")
    calm = [run for run in per_request.read(folder / "experiments.csv") if run.parts[0].apart is None]
    stages = [stage for run in calm for stage in stages_of(run, folder)]
    assert len(stages) == 5
    for one in stages:
        others = [other for other in stages if other.experiment != one.experiment]
        law = step_law(others)
        way = way_law(others, law)
        predicted = law[0] + law[1] * one.kv_tokens / 1e3 + law[2] * one.prompts
        assert predicted.mean() == pytest.approx(one.tpot.mean(), rel=0.02)
        left = way[0] + way[1] * one.running
        assert (one.ttft - waits(one, law) + left).mean() == pytest.approx(one.ttft.mean(), rel=0.03)
