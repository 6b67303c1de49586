"""Factors of served kernels: each moves its own term and nothing else, by what its definition says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sim.cost.build import compile_cost
from sim.cost.compiled import TOLERANCE
from sim.cost.terms import StepTerms
from sim.model import load_model
from sim.profile import HostOverhead, load_profile
from sim.served import Experts, Served

H100 = load_profile("h100_sxm").model_copy(
    update={"host": HostOverhead(base_s=0.0, call_s=0.0, source="none"), "served": None}
)
SERVICES = [("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("gpt-oss-120b", 1), ("gpt-oss-120b", 4)]
MXFP4 = "w4a16_mxfp4"
LIMITS = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}


def served(profile=H100, **factors):
    """A profile with these factors; the rest as the kernels were timed."""
    return profile.model_copy(update={"served": Served(source="test", **factors)})


def terms(name, tp=1, dtype="auto", **factors):
    profile = served(**factors) if factors else H100
    return StepTerms.of(load_model(name), profile, tp, dtype, "auto")


def cost(name, tp, profile=H100, **changes):
    return compile_cost(load_model(name), profile, tensor_parallel_size=tp, **{**LIMITS, **changes})


def steps():
    """Decodes of few and of many sequences, chunks beside decodes, a long prompt alone; contexts, and within 128."""
    yield 1, 1000, 128, ()
    yield 32, 32 * 2000, 32 * 128, ()
    yield 200, 200 * 700, 200 * 128, ()
    yield 32, 32 * 2000, 32 * 128, ((500, 0), (1500, 3000))
    yield 0, 0, 0, ((8192, 0),)


class TestFactorsOfOne:
    @pytest.mark.parametrize(("name", "tp"), SERVICES)
    def test_prices_are_those_without_factors(self, name, tp):
        experts = {kernel: Experts() for kernel in H100.moe}
        plain = cost(name, tp, weight_dtype="fp8")
        ones = cost(name, tp, served(experts=experts), weight_dtype="fp8")
        for step in steps():
            assert ones.mixed_ns(*step) == plain.mixed_ns(*step)
            before, after = plain.parts(*step).seconds, ones.parts(*step).seconds
            assert list(after) == list(before)
            assert after == pytest.approx(before, rel=1e-15)
        bulk = (32, 32 * 500, 32 * 128, 0, 2000)
        assert ones.decode_window_ns(*bulk).tolist() == plain.decode_window_ns(*bulk).tolist()

    def test_an_engine_without_experts_has_no_use_for_their_factors(self):
        factors = {"routing_s": 1e-3, "experts": {MXFP4: Experts(few=3.0, many=3.0)}}
        plain, other = cost("llama-3.1-8b", 1), cost("llama-3.1-8b", 1, served(**factors))
        assert all(plain.mixed_ns(*step) == other.mixed_ns(*step) for step in steps())

    @pytest.mark.parametrize("factors", [{"all_reduce": 3.0}, {"all_reduce_large": 3.0}])
    def test_one_gpu_reduces_nothing(self, factors):
        plain, other = cost("gpt-oss-120b", 1), cost("gpt-oss-120b", 1, served(**factors))
        assert all(plain.mixed_ns(*step) == other.mixed_ns(*step) for step in steps())


FACTORS = {
    "compute": ({"compute": 1.5}, {"compute": 0.8}, "gemm"),
    "gemm_fixed": ({"gemm_fixed": 2.0}, {"gemm_fixed": 0.0}, "gemm"),
    "decode_fixed": ({"decode_fixed": 2.0}, {"decode_fixed": 0.0}, "decode_attention"),
    "prefill_attention": ({"prefill_attention": 1.5}, {"prefill_attention": 0.5}, "prefill_attention"),
    "all_reduce": ({"all_reduce": 2.0}, {"all_reduce": 0.5}, "all_reduce"),
    "all_reduce_large": ({"all_reduce_large": 2.0}, {"all_reduce_large": 0.5}, "all_reduce"),
    "few": (
        {"experts": {MXFP4: Experts(few=2.0)}},
        {"experts": {MXFP4: Experts(few=0.5)}},
        "moe",
    ),
    "many": (
        {"experts": {MXFP4: Experts(many=2.0)}},
        {"experts": {MXFP4: Experts(many=0.5)}},
        "moe",
    ),
}


def moved(before, after):
    """Terms that differ, and by how much.

    Segments of decode attention are within a tolerance of a whole step, so they move a little with any other term.
    """
    assert list(before) == list(after)
    least = {term: 1e-12 * s for term, s in before.items()}
    least["decode_attention"] = 2 * TOLERANCE * max(sum(before.values()), sum(after.values()))
    return {term: after[term] - s for term, s in before.items() if abs(after[term] - s) > least[term]}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-70b", 4), ("gpt-oss-120b", 4)])
def test_each_factor_moves_its_term_alone_and_in_its_direction(name, tp, factor):
    slower, faster, term = FACTORS[factor]
    plain = cost(name, tp, weight_dtype="fp8")
    acts = 0
    for factors, sign in ((slower, 1), (faster, -1)):
        other = cost(name, tp, served(**factors), weight_dtype="fp8")
        for step in steps():
            found = moved(plain.parts(*step).seconds, other.parts(*step).seconds)
            assert set(found) <= {term}
            assert all(sign * more > 0 for more in found.values())
            acts += len(found)
    assert (acts > 0) == (term != "moe" or load_model(name).moe is not None)


class TestCompute:
    @pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
    @pytest.mark.parametrize("tokens", [1, 8, 300, 8192])
    def test_products_are_slower_by_the_share_of_arithmetic(self, dtype, tokens):
        plain = terms("llama-3.1-70b", 4, dtype)
        factor = 1.4
        before = {term: float(s) for term, s in plain.layers(tokens).items()}
        after = terms("llama-3.1-70b", 4, dtype, compute=factor).layers(tokens)
        gemm = H100.gemm[dtype]
        rate = gemm.sms * max(tile.flops_per_s for tile in gemm.tiles)
        model = load_model("llama-3.1-70b")
        layer = 8192 * 128 * (64 + 2 * 8) + 8192 * 64 * 128 + 3 * 8192 * model.intermediate_size
        arithmetic = 2 * tokens * layer / 4 * model.num_layers / rate
        share = min(arithmetic / sum(before.values()), 1.0)
        assert float(after["gemm"]) == pytest.approx(before["gemm"] * (1 + (factor - 1) * share))

    @pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 4)])
    def test_it_acts_on_long_prompts_and_hardly_on_decodes(self, name, tp):
        plain, hot = terms(name, tp), terms(name, tp, compute=1.5)
        more = {
            tokens: float(hot.layers(tokens)["gemm"] / plain.layers(tokens)["gemm"]) - 1
            for tokens in (1, 8, 8192)
        }
        assert 0 < more[1] < 0.01
        assert more[8] < 0.05
        assert 0.25 < more[8192] < 0.5

    @given(tokens=st.integers(1, 8192), factor=st.floats(0.2, 5))
    @settings(deadline=None)
    def test_no_product_is_slowed_by_more_than_the_factor(self, tokens, factor):
        before = float(terms("llama-3.1-8b").layers(tokens)["gemm"])
        after = float(terms("llama-3.1-8b", compute=factor).layers(tokens)["gemm"])
        low, high = sorted((before, factor * before))
        assert low * (1 - 1e-12) <= after <= high * (1 + 1e-12)


class TestGemmFixed:
    def test_sixteen_bit_products_have_no_quantisation_to_save(self):
        tokens = np.array([1, 64, 8192])
        plain, other = terms("llama-3.1-8b"), terms("llama-3.1-8b", gemm_fixed=0.0)
        assert other.layers(tokens)["gemm"].tolist() == plain.layers(tokens)["gemm"].tolist()

    def test_the_head_is_never_quantised(self):
        plain, other = (terms("llama-3.1-8b", dtype="fp8", **f) for f in ({}, {"gemm_fixed": 0.0}))
        assert float(plain.head(8)["lm_head"]) == float(other.head(8)["lm_head"])

    def test_every_quantised_product_saves_so_much_of_its_fixed_part(self):
        tokens = np.array(
            [512, 2048, 8192]
        )  # long enough that no product falls to the least that is left of it
        plain, half = (terms("llama-3.1-8b", dtype="fp8", **f) for f in ({}, {"gemm_fixed": 0.5}))
        saved = plain.layers(tokens)["gemm"] - half.layers(tokens)["gemm"]
        np.testing.assert_allclose(saved, 0.5 * 32 * 4 * H100.gemm["fp8"].launch_s, rtol=1e-9)

    def test_the_router_of_experts_is_not_quantised(self):
        tokens = np.array([512, 8192])
        plain, half = (terms("qwen3-30b-a3b", dtype="fp8", **f) for f in ({}, {"gemm_fixed": 0.5}))
        saved = plain.layers(tokens)["gemm"] - half.layers(tokens)["gemm"]
        layers = load_model("qwen3-30b-a3b").num_layers
        np.testing.assert_allclose(saved, 0.5 * layers * 2 * H100.gemm["fp8"].launch_s, rtol=1e-9)

    @given(tokens=st.integers(1, 8192), share=st.floats(0, 1), launch_s=st.sampled_from([3e-6, 1e-3]))
    @settings(deadline=None)
    def test_something_is_always_left(self, tokens, share, launch_s):
        """Even where a table's correction leaves a product less than the fixed part of all of them."""
        gemm = H100.gemm | {"fp8": H100.gemm["fp8"].model_copy(update={"launch_s": launch_s})}
        plain = H100.model_copy(update={"gemm": gemm})
        before, after = (
            float(StepTerms.of(load_model("llama-3.1-8b"), one, 1, "fp8", "auto").layers(tokens)["gemm"])
            for one in (plain, served(plain, gemm_fixed=share))
        )
        assert 0.2 * before * (1 - 1e-12) <= after <= before * (1 + 1e-12)


class TestDecodeFixed:
    @pytest.mark.parametrize(("name", "tp"), SERVICES[:2])
    def test_without_it_only_the_streaming_of_kv_is_left(self, name, tp):
        model = load_model(name)
        (fit,) = (
            one
            for one in H100.decode_attention["bfloat16"].regimes
            if (one.head_dim, one.window) == (model.head_dim, 0)
        )
        token = model.kv_bytes_per_token("bfloat16", tp)
        for num_seqs in (1, 32, 256):
            context = num_seqs * np.array([1, 100, 5000, 60000])
            left = terms(name, tp, decode_fixed=0.0).decode_attention(num_seqs, context, window=False)
            np.testing.assert_allclose(left, token * context / fit.hbm_bytes_per_s, rtol=1e-12)

    def test_the_window_bounds_what_is_streamed(self):
        bare = terms("gpt-oss-120b", decode_fixed=0.0)
        near, far = bare.decode_attention(8, np.array([8 * 128, 8 * 4096]), window=True)
        assert near == far > 0

    @given(num_seqs=st.integers(1, 256), mean=st.integers(1, 30000), share=st.floats(0, 9))
    @settings(deadline=None)
    def test_what_is_beyond_the_streaming_scales(self, num_seqs, mean, share):
        def seconds(**factors):
            context = num_seqs * mean
            return float(terms("llama-3.1-8b", **factors).decode_attention(num_seqs, context, window=False))

        streamed, whole = seconds(decode_fixed=0.0), seconds()
        assert streamed <= whole * (1 + 1e-12)
        assert seconds(decode_fixed=share) == pytest.approx(streamed + share * (whole - streamed))


def test_prefill_attention_scales_beside_its_launches():
    chunks = ((500, 0), (1500, 3000))
    before, after = (
        cost("llama-3.1-8b", 1, p).parts(4, 4000, 0, chunks).seconds
        for p in (H100, served(prefill_attention=1.5))
    )
    assert after["prefill_attention"] == pytest.approx(1.5 * before["prefill_attention"])
    assert (
        terms("llama-3.1-8b").prefill_launches()
        == terms("llama-3.1-8b", prefill_attention=1.5).prefill_launches()
    )


class TestAllReduce:
    def test_between_the_sizes_the_factor_is_in_between(self):
        """Llama-70B has 16 KiB a token: 64 tokens are 1 MiB, 1,024 are 16 MiB, and 256 are halfway on a log scale."""
        tokens = np.array([1, 64, 256, 1024, 8192])
        factors = {"all_reduce": 1.5, "all_reduce_large": 0.5}
        after = terms("llama-3.1-70b", 4, **factors).layers(tokens)["all_reduce"]
        ratio = after / terms("llama-3.1-70b", 4).layers(tokens)["all_reduce"]
        np.testing.assert_allclose(ratio, [1.5, 1.5, 1.0, 0.5, 0.5])

    @given(
        tokens=st.integers(1, 8192),
        more=st.integers(0, 500),
        small=st.floats(0.2, 5),
        large=st.floats(0.2, 5),
    )
    @settings(deadline=None)
    def test_the_factor_goes_from_one_to_the_other(self, tokens, more, small, large):
        both = np.array([tokens, tokens + more])
        after = terms("llama-3.1-70b", 4, all_reduce=small, all_reduce_large=large).layers(both)["all_reduce"]
        first, second = after / terms("llama-3.1-70b", 4).layers(both)["all_reduce"]
        low, high = sorted((small, large))
        assert low * (1 - 1e-12) <= min(first, second)
        assert max(first, second) <= high * (1 + 1e-12)
        assert (second - first) * (large - small) >= -1e-12

    def test_the_gathering_of_logits_is_a_message_too(self):
        few, many = 1, 1024  # 128,256 values of two bytes a sequence: a quarter of a MiB, and 250 MiB
        plain, other = (
            terms("llama-3.1-70b", 4, **f) for f in ({}, {"all_reduce": 2.0, "all_reduce_large": 0.5})
        )
        for sequences, factor in ((few, 2.0), (many, 0.5)):
            ratio = other.head(sequences)["all_reduce"] / plain.head(sequences)["all_reduce"]
            assert float(ratio) == pytest.approx(factor)


class TestExperts:
    def test_by_tokens_that_an_expert_meets(self):
        """Four of 128 experts a token: one token an expert at 32, 64 at 2,048, and 8 (halfway) at 256."""
        tokens = np.array([1, 32, 256, 2048, 8192])
        after = terms("gpt-oss-120b", experts={MXFP4: Experts(few=0.6, many=1.4)}).layers(tokens)["moe"]
        ratio = after / terms("gpt-oss-120b").layers(tokens)["moe"]
        np.testing.assert_allclose(ratio, [0.6, 0.6, 1.0, 1.4, 1.4])

    def test_the_fastest_kernel_is_chosen_as_served(self):
        tokens = np.array([1, 16, 128, 1024, 8192])
        alone = {
            name: terms("mixtral-8x7b", 4, "fp8", experts={other: Experts(few=9.9, many=9.9)}).layers(tokens)
            for name, other in (("fp8", "fp8_block"), ("fp8_block", "fp8"))
        }
        both = terms("mixtral-8x7b", 4, "fp8").layers(tokens)["moe"]
        np.testing.assert_array_equal(both, np.minimum(alone["fp8"]["moe"], alone["fp8_block"]["moe"]))

    def test_the_factor_of_another_kernel_does_nothing(self):
        tokens = np.array([1, 100, 8192])
        other = terms("gpt-oss-120b", experts={"fp8": Experts(few=5.0, many=5.0)})
        np.testing.assert_array_equal(
            other.layers(tokens)["moe"], terms("gpt-oss-120b").layers(tokens)["moe"]
        )

    @pytest.mark.parametrize("name", ["gpt-oss-120b", "mixtral-8x7b"])
    def test_routing_comes_once_a_layer_whatever_the_tokens(self, name):
        tokens = np.array([1, 100, 8192])
        more = terms(name, routing_s=7e-6).layers(tokens)["moe"] - terms(name).layers(tokens)["moe"]
        np.testing.assert_allclose(more, load_model(name).num_moe_layers * 7e-6, rtol=1e-9)


@given(
    factors=st.fixed_dictionaries(
        {
            "compute": st.floats(0.2, 5),
            "gemm_fixed": st.floats(0, 5),
            "decode_fixed": st.floats(0, 5),
            "prefill_attention": st.floats(0.2, 5),
            "routing_s": st.floats(0, 1e-4),
            "all_reduce": st.floats(0.2, 5),
            "all_reduce_large": st.floats(0.2, 5),
        }
    ),
    few=st.floats(0.2, 5),
    num_seqs=st.integers(1, 64),
    mean=st.integers(1, 20000),
    step_count=st.integers(1, 50),
)
@settings(deadline=None, max_examples=25)
def test_steps_in_bulk_equal_steps_one_by_one(factors, few, num_seqs, mean, step_count):
    factors = {**factors, "experts": {MXFP4: Experts(few=few)}}
    price = cost("gpt-oss-120b", 4, served(**factors), max_num_batched_tokens=256)
    context, window = num_seqs * mean, num_seqs * min(mean, 128)
    bulk = price.decode_window_ns(num_seqs, context, window, 0, step_count)
    single = [price.decode_ns(num_seqs, context + num_seqs * j, window) for j in range(step_count)]
    assert bulk.tolist() == single
    parts = price.parts(num_seqs, context, window, ())
    assert single[0] == pytest.approx(1e9 * parts.total_s, abs=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"compute": 0.0},
        {"compute": 100.0},
        {"decode_fixed": -0.1},
        {"routing_s": -1e-6},
        {"experts": {MXFP4: {"few": 0.0}}},
        {"typo": 1.0},
    ],
)
def test_factors_have_bounds(wrong):
    with pytest.raises(ValidationError):
        Served(source="test", **wrong)


def test_factors_survive_a_file_and_change_the_hash():
    profile = load_profile("h100_sxm").with_served(
        Served(compute=1.2, experts={MXFP4: Experts(few=0.7)}, source="test")
    )
    again = type(profile).model_validate_json(profile.to_json())
    assert again.served == profile.served
    assert again.content_hash == profile.content_hash
    other = profile.with_served(profile.served.model_copy(update={"compute": 1.21}))
    assert other.content_hash != profile.content_hash
