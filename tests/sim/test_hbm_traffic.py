"""What steps of shipped models move over HBM: the bytes of `parts`, step by step as in bulk, and what flows slow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.cost.build import compile_cost
from sim.links.stretch import stretched_window_ns
from sim.model import load_model
from sim.profile import load_profile, shipped_profiles


def priced(model="llama-3.1-8b", profile="h200_sxm", **options):
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
    return compile_cost(load_model(model), load_profile(profile), **limits, **options)


COSTS = {
    "dense": priced(),
    "windowed": priced("gpt-oss-120b"),
    "experts": priced("qwen3-30b-a3b", tensor_parallel_size=2),
    "eager": priced(enforce_eager=True),
}
costs = st.sampled_from(sorted(COSTS)).map(COSTS.get)


@settings(max_examples=60, deadline=None)
@given(costs, st.integers(1, 64), st.integers(1, 5000), st.integers(0, 100), st.integers(1, 40))
def test_what_belongs_to_a_step_does_not_depend_on_how_many_are_asked_for(cost, seqs, mean, window, steps):
    contexts = seqs * mean, seqs * min(mean, window)
    growing = seqs // 2
    many = cost.traffic(seqs, *contexts, growing=growing, steps=steps)
    alone = cost.decode_window_ns(seqs, *contexts, growing, steps)
    together = stretched_window_ns(alone, many.phases, 0.7, cost.hbm_bytes_per_s, many.slack_s)
    for step in range(steps):
        one = cost.traffic(seqs, contexts[0] + seqs * step, contexts[1] + growing * step)
        assert one.hbm_bytes.tolist() == [many.hbm_bytes[step]]
        single = stretched_window_ns(
            alone[step : step + 1], one.phases, 0.7, cost.hbm_bytes_per_s, one.slack_s
        )
        assert single.tolist() == [together[step]]


@settings(max_examples=60, deadline=None)
@given(
    costs,
    st.integers(0, 64),
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 3000)), max_size=3),
)
def test_bytes_and_slack_are_those_of_the_parts(cost, seqs, mean, chunks):
    assume(seqs or chunks)
    contexts = seqs * mean, seqs * min(mean, 128)
    parts = cost.parts(seqs, *contexts, chunks)
    traffic = cost.traffic(seqs, *contexts, chunks=chunks)
    assert traffic.hbm_bytes[0] == pytest.approx(parts.hbm_bytes, rel=1e-9)
    assert sum(np.sum(size) for _, size in traffic.phases) == pytest.approx(parts.hbm_bytes, rel=1e-9)
    assert np.sum(traffic.slack_s) == pytest.approx(parts.seconds.get("host_wait", 0.0), abs=1e-9)


def longer(cost, share, seqs, context, chunks=()):
    """By what factor a step with that share of HBM takes longer."""
    alone = cost.mixed_ns(seqs, context, 0, chunks)
    traffic = cost.traffic(seqs, context, 0, chunks=chunks)
    window = np.array([alone])
    return (
        stretched_window_ns(window, traffic.phases, share, cost.hbm_bytes_per_s, traffic.slack_s)[0] / alone
    )


def test_decodes_slow_with_the_bandwidth_and_long_prompts_hardly():
    """At half the HBM bandwidth a decode step takes 1.6 to 2 times as long; one with 8,192 prompt tokens 1% longer."""
    cost = COSTS["dense"]
    for seqs, mean in ((1, 1000), (32, 2000), (128, 4000)):
        assert 1.6 < longer(cost, 0.5, seqs, seqs * mean) < 2.0
    assert longer(cost, 0.5, 0, 0, ((8192, 0),)) < 1.01


def test_a_load_over_pcie_takes_its_share_of_hbm_from_decodes():
    """64 of 4,800 GB/s: 1.35% (64 / 4,736) of the time in which a step is bound by memory, 1% of it all."""
    cost, context = COSTS["dense"], 32 * 2000
    memory_s = cost.traffic(32, context, 0).hbm_bytes[0] / cost.hbm_bytes_per_s
    expected = 1 + 64 / 4736 * memory_s / (cost.decode_ns(32, context, 0) / 1e9)
    assert longer(cost, 1 - 64 / 4800, 32, context) == pytest.approx(expected, abs=1e-6)
    assert 1.009 < expected < 1.011


def test_the_host_hides_what_it_waits_for_anyway():
    assert longer(COSTS["eager"], 0.9, 1, 100) == 1.0


@pytest.mark.parametrize("name", shipped_profiles())
def test_kernels_reach_less_than_the_vendor_says(name):
    profile = load_profile(name)
    assert 0.75 < profile.hbm_bytes_per_s / profile.device.hbm_bytes_per_s < 0.95
