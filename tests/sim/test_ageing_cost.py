"""Steps over a compressed KV cache: worked by hand, bit for bit in bulk, and equal to a plain cache at the ends."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.build import compile_cost
from sim.kv.compression import KvCompression
from sim.model import load_model
from sim.profile import HostOverhead, load_profile
from tests.sim.doubles import TINY, ClosedFormProfile
from workloads.errors import ConfigError

PROFILE = ClosedFormProfile()
HALF = Fraction(1, 2)


def compiled(compression=None, profile=PROFILE, model=TINY, **changes):
    limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
    return compile_cost(model, profile, **{**limits, **changes}, compression=compression)


ageing = st.builds(
    KvCompression,
    owning_layers=st.sampled_from([1.0, 0.4]),
    layer_keep=st.sampled_from([(1.0, 1.0, 1.0), (0.753, 1.0, 0.427)]),
    recent_tokens=st.integers(0, 400),
    older_kept=st.sampled_from([Fraction(1), Fraction(3, 5), Fraction(1, 7)]),
    older_dtype=st.sampled_from(["bfloat16", "fp8", "int8"]),
)


@given(
    compression=ageing,
    kinks=st.lists(st.integers(1, 5000), max_size=4),
    num_seqs=st.integers(1, 64),
    mean=st.integers(1, 600),
    recent_share=st.floats(0, 1),
    growing_share=st.floats(0, 1),
    steps=st.integers(1, 300),
    base=st.sampled_from([0.0, 2.5e-5, 1e-4]),
)
@settings(max_examples=300, deadline=None)
def test_steps_in_bulk_equal_steps_one_by_one(
    *, compression, kinks, num_seqs, mean, recent_share, growing_share, steps, base
):
    host = HostOverhead(base_s=0.0, cpu_base_s=base, source="test")
    cost = compiled(compression, ClosedFormProfile(host=host, kinks=tuple(kinks)))
    context = num_seqs * mean
    recent = round(recent_share * num_seqs * min(mean, compression.recent_tokens))
    growing = round(growing_share * num_seqs)
    bulk = cost.decode_window_ns(num_seqs, context, recent, growing, steps)
    single = [cost.decode_ns(num_seqs, context + num_seqs * j, recent + growing * j) for j in range(steps)]
    assert bulk.tolist() == single


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm"])
@pytest.mark.parametrize("recent", [0, 500])
def test_steps_in_bulk_equal_steps_one_by_one_on_a_shipped_profile(gpu, recent):
    compression = KvCompression(recent_tokens=recent, older_kept=Fraction(3, 5), older_dtype="int8")
    cost = compiled(compression, load_profile(gpu), load_model("llama-3.1-8b"))
    for num_seqs in (1, 3, 17, 64):
        near = num_seqs * min(recent, 498)
        growing = num_seqs if recent else 0
        bulk = cost.decode_window_ns(num_seqs, num_seqs * 498, near, growing, 3)
        bulk = [*bulk, *cost.decode_window_ns(num_seqs, num_seqs * 501, num_seqs * recent, 0, 3000)]
        single = [
            cost.decode_ns(num_seqs, num_seqs * length, num_seqs * min(recent, length))
            for length in range(498, 3501)
        ]
        assert bulk == single


@given(compression=ageing, num_seqs=st.integers(1, 64), mean=st.integers(1, 400))
@settings(deadline=None, max_examples=50)
def test_where_nothing_is_older_it_costs_what_whole_tokens_cost(compression, num_seqs, mean):
    context = num_seqs * mean
    whole = compiled(replace(compression, recent_tokens=None, older_kept=Fraction(1), older_dtype="bfloat16"))
    cost = compiled(compression)
    assert cost.decode_ns(num_seqs, context, context) == whole.decode_ns(num_seqs, context, 0)
    if compression.recent_tokens:
        short = ((1, 0),)
        assert cost.mixed_ns(num_seqs, context, context, short) == whole.mixed_ns(num_seqs, context, 0, short)


def test_the_default_compression_is_a_plain_cache():
    plain, default = compiled(), compiled(KvCompression())
    assert type(plain) is type(default)
    assert default.sliding_window is None
    for step in ((5, 700, 0, ()), (3, 900, 0, ((64, 0), (30, 256)))):
        assert plain.parts(*step) == default.parts(*step)


def attention_s(sequences, context):
    return 2e-6 + 2 * 16 * context * 1e-12 + sequences * 1e-9


def ageing_s(tokens, layers=3, size=192):
    """Read whole and written in 8 bits: 128 + 64 bytes a token, layer and GPU."""
    return layers * (1e-7 + tokens * size * 1e-13) if tokens else 0.0


def test_cold_tokens_by_hand():
    """Five sequences of 140 tokens, 100 of them recent: 200 older tokens count as half of what they did."""
    parts = compiled(KvCompression(recent_tokens=100, older_dtype="fp8")).parts(5, 700, 500, ())
    assert parts.seconds["decode_attention"] == pytest.approx(3 * attention_s(5, 500 + 200 / 2), rel=2e-3)
    assert parts.seconds["kv_ageing"] == pytest.approx(ageing_s(5))
    plain = compiled().parts(5, 700, 0, ())
    assert plain.hbm_bytes - parts.hbm_bytes == pytest.approx(3 * 128 * 100)


def test_int8_reads_its_scales_too():
    """Head dimension 16: a scale of 4 bytes on 16 makes it 5/8 of 16-bit."""
    parts = compiled(KvCompression(recent_tokens=100, older_dtype="int8")).parts(5, 700, 500, ())
    assert parts.seconds["decode_attention"] == pytest.approx(3 * attention_s(5, 500 + 200 * 5 / 8), rel=2e-3)
    assert parts.seconds["kv_ageing"] == pytest.approx(ageing_s(5, size=128 + 80))


def test_kept_tokens_by_hand():
    parts = compiled(KvCompression(recent_tokens=100, older_kept=Fraction(3, 5))).parts(5, 700, 500, ())
    assert parts.seconds["decode_attention"] == pytest.approx(3 * attention_s(5, 500 + 120), rel=2e-3)
    assert parts.seconds["kv_ageing"] == pytest.approx(ageing_s(5, size=0.6 * 256))


def test_no_more_tokens_age_than_are_older():
    cost = compiled(KvCompression(recent_tokens=100, older_dtype="fp8"))
    assert cost.parts(5, 500, 500, ()).seconds.get("kv_ageing") is None
    assert cost.parts(5, 502, 500, ()).seconds["kv_ageing"] == pytest.approx(ageing_s(2))
    chunks = (
        (64, 0),
        (64, 64),
        (32, 300),
    )  # the second reaches 28 tokens beyond the border, the third is beyond
    assert cost.parts(0, 0, 0, chunks).seconds["kv_ageing"] == pytest.approx(ageing_s(28 + 32))


def test_layers_that_share_kv_read_all_of_it_and_age_less():
    compression = KvCompression(owning_layers=0.34, recent_tokens=100, older_dtype="fp8")
    parts = compiled(compression).parts(5, 700, 500, ())
    assert parts.seconds["decode_attention"] == pytest.approx(3 * attention_s(5, 600), rel=2e-3)
    assert parts.seconds["kv_ageing"] == pytest.approx(ageing_s(5, layers=1))


def test_pruned_layers_read_less():
    parts = compiled(KvCompression(layer_keep=(0.5, 1.0, 0.25))).parts(4, 2000, 0, ())
    expected = sum(attention_s(4, share * 2000) for share in (0.5, 1.0, 0.25))
    assert parts.seconds["decode_attention"] == pytest.approx(expected, rel=2e-3)
    plain = compiled().parts(4, 2000, 0, ())
    assert plain.hbm_bytes - parts.hbm_bytes == pytest.approx(128 * 2000 * 1.25)


def test_a_window_is_that_of_a_model_that_has_one():
    windowed = replace(TINY, sliding_window=128, num_window_layers=3)
    own, given_one = (
        compiled(model=windowed),
        compiled(KvCompression(recent_tokens=128, older_kept=Fraction(0))),
    )
    assert own.sliding_window == given_one.sliding_window == 128
    for step in ((4, 2000, 400, ()), (4, 2000, 400, ((64, 0), (64, 1000)))):
        assert own.parts(*step) == given_one.parts(*step)
        assert own.mixed_ns(*step) == given_one.mixed_ns(*step)


@given(
    compression=ageing,
    num_seqs=st.integers(0, 20),
    mean=st.integers(1, 600),
    chunks=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 1000)), max_size=4),
)
@settings(deadline=None)
def test_parts_add_up_to_the_price(compression, num_seqs, mean, chunks):
    if not num_seqs and not chunks:
        chunks = [(1, 0)]
    cost = compiled(compression)
    step = (num_seqs, num_seqs * mean, num_seqs * min(mean, compression.recent_tokens), chunks)
    # Mixed steps are padded to graphs as priced; a step is whole nanoseconds.
    assert cost.parts(*step).total_s * 1e9 == pytest.approx(cost.mixed_ns(*step), abs=1)


def test_traffic_and_parts_move_the_same_bytes_of_kv():
    def moved(compression, chunks):
        cost = compiled(compression, load_profile("b200_sxm"), load_model("llama-3.1-8b"))
        step = (8, 8000, 3200 if compression else 0)
        return np.array(
            [cost.traffic(*step, chunks=chunks).hbm_bytes[0], cost.parts(*step, chunks).hbm_bytes]
        )

    compression = KvCompression(recent_tokens=400, older_kept=HALF, older_dtype="fp8")
    token = 32 * 2 * 8 * 128 * 2
    for chunks, dropped in (((), 4800), (((100, 1000),), 4800 + 600)):
        fewer = moved(None, chunks) - moved(compression, chunks)
        assert fewer == pytest.approx(2 * [token * dropped * 3 / 4], abs=1)


def test_on_hopper_cold_tokens_are_read_as_slowly_as_hot_ones():
    """What served rows say of 8-bit KV there: `decode_kv_dtype` in sim/cost/terms.py."""
    hopper = replace(PROFILE, device=SimpleNamespace(compute_capability="9.0"))
    compression = KvCompression(recent_tokens=100, older_dtype="fp8")
    seconds = compiled(compression, hopper).parts(5, 7000, 500, ()).seconds
    assert (
        seconds["decode_attention"]
        == compiled(None, hopper).parts(5, 7000, 0, ()).seconds["decode_attention"]
    )
    assert (
        compiled(compression).parts(5, 7000, 500, ()).seconds["decode_attention"]
        < seconds["decode_attention"]
    )


def test_ageing_in_a_model_with_a_window_of_its_own_is_refused():
    for compression in (
        KvCompression(recent_tokens=100, older_dtype="fp8"),
        KvCompression(recent_tokens=100, older_kept=HALF),
        KvCompression(recent_tokens=100, older_kept=Fraction(0)),
    ):
        with pytest.raises(
            ConfigError, match="kv_compression: mistral-7b has a sliding window of 4096 tokens"
        ):
            compiled(compression, model=load_model("mistral-7b"))
    both_kinds = compiled(KvCompression(layer_keep=(0.5, 0.5, 0.5)), model=load_model("gpt-oss-120b"))
    plain = compiled(model=load_model("gpt-oss-120b"))
    halves = both_kinds.parts(4, 4000, 512, ()).seconds["decode_attention"]
    assert halves == pytest.approx(plain.parts(4, 2000, 256, ()).seconds["decode_attention"], rel=1e-3)
    assert np.isfinite(halves)
