"""The miniature engine, watched: its tokens stay what they are, and what is recorded is the attention of its model."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwbackend.attention.choice import Covering, Heaviest
from hwbackend.attention.engine_source import (
    EngineAttention,
    EngineLoad,
    SampledAttention,
    SampledExecutor,
    SteppedClock,
)
from hwbackend.attention.mass import page_mass, token_mass
from hwbackend.attention.sampler import PageSampler, Sampling
from hwbackend.attention.source import record
from hwbackend.device import open_device
from hwbackend.engine.kv_pool import KvBlocks, PagedAttention
from hwbackend.engine.transformer import Transformer
from hwbackend.engine.weights import random_weights
from hwbackend.kernels.cuda_ops import CudaOps
from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.engine.cluster import EngineSetup
from sim.errors import ConfigError
from sim.kv.access.reuse import Reuse
from sim.kv.build import KvSetup
from sim.model import ModelSpec
from tests.hwbackend.cuda_on_cpu import COMPILER, CpuRuntime
from tests.hwbackend.engine_reference import logits_of
from tests.hwbackend.kernel_cases import poison, wide
from tests.hwbackend.test_engine_tokens_and_logits import (
    BLOCK,
    COST,
    MODEL,
    REQUESTS,
    SLOW,
    WEIGHTS,
    engine_of,
    serve_on_cpu,
)
from tests.sim.engines import trace_of, with_prefixes


def watched(trace, engine, index: int, sampling: Sampling):
    """Serves all of it with a sampler at one request; returns the sampler beside what `serve_on_cpu` does."""
    sampler = PageSampler(sampling, MODEL.num_layers, MODEL.num_kv_heads)

    class Watched(SampledExecutor):
        def __init__(self, parts, on_logits):
            super().__init__(parts, SteppedClock(), index, sampler, everything=True, on_logits=on_logits)

        def run(self, core, plan):
            super().run(core, plan)
            self.clock.time_ns += COST.mixed_ns(plan.decodes, plan.context_tokens, 0, plan.shapes)

    return sampler, *serve_on_cpu(trace, engine, executor_class=Watched)


def assert_is_the_attention_of_the_model(recording, tokens) -> None:
    """Page by page, where all were chosen; so no page of a context is missing, and none stands twice."""
    for step in range(recording.steps):
        context = recording.header.context_tokens + step
        masses: list[np.ndarray] = []
        logits_of(MODEL, WEIGHTS, tokens[:context], masses=masses)
        for layer, mass in enumerate(masses):
            rows = (recording.step == step) & (recording.layer == layer)
            assert recording.page[rows].tolist() == list(range(-(-context // BLOCK)))
            assert recording.weight[rows].sum() == pytest.approx(1, abs=1e-9)
            expected = page_mass(mass.mean(axis=0), BLOCK)
            np.testing.assert_allclose(recording.weight[rows], expected, rtol=0, atol=1e-5)


@SLOW
@given(REQUESTS, st.integers(15, 40), st.integers(0, 8), st.integers(1, 4))
def test_tokens_and_logits_are_the_same_with_a_sampler_and_without(asked, blocks, index, steps):
    trace, engine = trace_of(*asked), engine_of(blocks=blocks, batcher=Chunked(chunk_tokens=16))
    _, plain, expected = serve_on_cpu(trace, engine)
    sampling = Sampling(BLOCK, Covering(1.0), steps=steps)
    sampler, served, tokens, logits = watched(trace, engine, index % len(asked), sampling)
    assert logits.keys() == expected.keys()
    assert all(np.array_equal(logits[key], expected[key]) for key in expected)
    assert tokens.sampled.keys() == plain.sampled.keys()
    assert all(np.array_equal(tokens.sampled[i], plain.sampled[i]) for i in plain.sampled)
    if not served.core.preemptions:
        assert sampler.steps == min(steps, asked[index % len(asked)][2] - 1)
    if sampler.steps:
        recording = sampler.recording("x", random_weights=True)
        assert_is_the_attention_of_the_model(recording, tokens.of(index % len(asked)))


def test_what_a_prefix_cache_shares_is_recorded_like_anything_else():
    shared = with_prefixes(trace_of((0, 17, 6), (0, 19, 8), (90_000, 18, 5)), [[1, 2, 3, 4]] * 3, BLOCK)
    engine = engine_of(blocks=60, prefix_caching=True)
    sampler, served, tokens, _ = watched(shared, engine, 2, Sampling(BLOCK, Covering(1.0), steps=4))
    assert served.steps.prefix_hits >= 16
    recording = sampler.recording("x", random_weights=True)
    assert recording.header.context_tokens == 19
    assert_is_the_attention_of_the_model(recording, tokens.of(2))


def test_a_preempted_sequence_is_recorded_over_steps_in_a_row():
    trace = trace_of(*((1000 * i, 20, 12) for i in range(8)))
    engine, steps = engine_of(blocks=14), 5
    restarted = 0
    for index in range(8):
        sampler, served, tokens, _ = watched(
            trace, engine, index, Sampling(BLOCK, Covering(1.0), steps=steps)
        )
        assert served.core.preemptions >= 2
        if sampler.done:
            recording = sampler.recording("x", random_weights=True)
            restarted += recording.header.context_tokens > 21
            assert_is_the_attention_of_the_model(recording, tokens.of(index))
    assert restarted


@pytest.fixture
def device():
    opened = open_device("cpu")
    yield opened
    opened.close()


def test_a_load_is_one_recording_and_ends_with_it(device):
    trace = trace_of((0, 20, 9), (0, 30, 8), (10**15, 40, 100))  # the last comes after eleven days
    load = EngineLoad(trace, engine_of(), COST)
    transformer = Transformer(MODEL, WEIGHTS, device, 512)
    sampling = Sampling(BLOCK, Heaviest(3), "apart", 6)
    first, second = (record(EngineAttention(device, transformer, load, 1), sampling) for _ in range(2))
    assert first.header == second.header
    assert (first.header.context_tokens, first.steps, first.header.num_layers) == (31, 6, 4)
    assert first.header.random_weights is True
    assert "random weights, request 1 (30 prompt tokens)" in first.header.source
    assert np.array_equal(first.page, second.page)
    assert np.array_equal(first.weight, second.weight)


def test_more_steps_than_a_request_has_and_a_request_that_is_not_there(device):
    load = EngineLoad(trace_of((0, 20, 9)), engine_of(), COST)
    transformer = Transformer(MODEL, WEIGHTS, device, 512)
    with pytest.raises(ConfigError, match=r"--steps 9: .* has 8 decode steps in a row"):
        record(EngineAttention(device, transformer, load, 0), Sampling(BLOCK, Heaviest(3), steps=9))
    with pytest.raises(ConfigError, match="--request 1: the load has requests 0 to 0"):
        EngineAttention(device, transformer, load, 1)


@pytest.mark.skipif(COMPILER is None, reason="no g++ to run the kernels on the host with")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_of_16_bits_are_read_back_as_they_are(dtype):
    """The operations of a GPU, run on the host: mass of the stored keys, among blocks that nobody may read."""
    ops = CudaOps(CpuRuntime(), dtype)
    gpu = SimpleNamespace(xp=np, ops=ops, to_device=np.copy, to_host=np.copy)
    model = dataclasses.replace(MODEL, head_dim=64)
    blocks = KvBlocks(gpu, model, 9, 16)
    poison(blocks.layers[0])
    rng, table, tokens = np.random.default_rng(0), np.array([7, 2, 5]), 40
    q, k, v = (
        ops.to_values(rng.normal(size=(n, h, 64)).astype(np.float32)) for n, h in ((2, 4), (39, 2), (39, 2))
    )
    ops.append_kv(blocks.layers[0], k, v, blocks.slots(table, np.arange(39)).astype(np.int32))
    new_k, new_v = (ops.to_values(rng.normal(size=(2, 2, 64)).astype(np.float32)) for _ in range(2))
    slots = np.array([3, blocks.slots(table, np.array([39]))[0]], np.int32)  # another decodes beside it
    tables, lens = np.array([[0, 0, 0], table], np.int32), np.array([4, tokens], np.int32)
    blocks.layers[0].data[:, 0] = 0  # the other's block
    sampler = PageSampler(Sampling(16, Covering(1.0), steps=1), 1, 2)
    row = SimpleNamespace(position=tokens - 1, table=table)
    paged = PagedAttention(gpu, blocks, slots, tables, lens, tokens)
    attention = SampledAttention(paged, gpu, blocks, 1, row, sampler)
    attention.attend(0, q, new_k, new_v)
    recording = sampler.recording("x", random_weights=True)
    keys = np.concatenate([wide(ops, k), wide(ops, new_k)[1:]])
    expected = page_mass(token_mass(wide(ops, q)[1], keys).mean(axis=0), 16)
    assert recording.page.tolist() == [0, 1, 2]
    np.testing.assert_allclose(recording.weight, expected, rtol=1e-12)


DEEP = ModelSpec(
    name="deep",
    architecture="LlamaForCausalLM",
    num_layers=12,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    vocab_size=997,
    max_position_embeddings=1024,
)


def test_layers_of_random_weights_share_what_chance_gives(device):
    """So of the claim that layers share 60.7% of their pages [K9] nothing is shown by such a model.

    The weights of two layers are drawn apart, and with them what they prefer. What is not by chance: the tokens
    themselves stand in the residual stream of both, and the last page holds fewer tokens than others.
    """
    transformer = Transformer(DEEP, random_weights(DEEP, 3), device, 1024)
    engine = EngineSetup(EngineLimits(1, 1024, 16), Chunked(), KvSetup(60, 16, 1024))
    for pages in (10, 25, 40):
        load = EngineLoad(trace_of((0, 800, 17)), engine, COST)
        sampling = Sampling(16, Heaviest(pages), steps=16)
        recording = record(EngineAttention(device, transformer, load, 0), sampling)
        across = Reuse(recording).cross_layer
        assert across.average.chance == pytest.approx(pages / 51, abs=0.005)
        assert abs(across.average.measured - across.average.chance) < 0.03
        for third in (across.first, across.middle, across.last):
            assert abs(third.measured - third.chance) < 0.06
        assert across.verdict(recording.header) == ("not judged", "random weights show chance alone")
