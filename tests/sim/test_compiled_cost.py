"""The compiled step cost: worked by hand, bit for bit in bulk, close to the curves it was compiled from."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.build import compile_cost
from sim.cost.eager import calls_per_layer
from sim.model import MoeSpec, load_model
from sim.profile import HostOverhead, load_profile, shipped_profiles
from sim.served import Served
from tests.sim import doubles
from tests.sim.doubles import ClosedFormProfile
from workloads.errors import ConfigError

TINY = replace(doubles.TINY, num_layers=2)
WINDOWED = replace(TINY, sliding_window=128, num_window_layers=1)
PROFILE = ClosedFormProfile()


def compiled(model=TINY, profile=PROFILE, **changes):
    limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
    return compile_cost(model, profile, **{**limits, **changes})


def layers_s(tokens):
    """Everything but attention in TINY's two layers, and the embedding and final norm, as the text says."""
    gemms = 4e-6 + tokens * 1e-15 * (64 * (4 + 2 * 2) * 16 + 64 * 64 + 64 * 256 + 128 * 64)
    norm, rope = 1e-7 + tokens * 2 * 64 * 2 * 1e-13, 1e-7 + tokens * 96 * 2 * 1e-13
    write, gate = 1e-7 + tokens * 2 * 32 * 2 * 1e-13, 1e-7 + tokens * 3 * 128 * 2 * 1e-13
    embedding = 1e-7 + tokens * 2 * 64 * 2 * 1e-13
    return 2 * (gemms + 2 * norm + rope + write + gate) + embedding + norm


def head_s(sequences):
    return 1e-6 + sequences * 64 * 1000 * 1e-15 + 10 * (1e-7 + sequences * 600 * 1e-13)


def decode_s(sequences, context):
    return 2 * (2e-6 + 2 * 16 * context * 1e-12 + sequences * 1e-9)


def chunk_s(new, computed):
    return 2 * 4 * 16 * (new * computed + new * (new + 1) / 2) * 1e-15


def test_pure_decode_by_hand():
    expected = layers_s(8) + head_s(5) + decode_s(5, 700)  # five sequences are padded to the graph of eight
    assert compiled().decode_ns(5, 700, 0) == round(expected * 1e9)


def test_mixed_step_by_hand():
    cost = compiled(enforce_eager=False, cudagraph_capture_sizes=[512])
    chunks = ((64, 0), (32, 256))  # knots of the grid, where it is exact
    expected = layers_s(512) + head_s(5) + decode_s(3, 700) + chunk_s(64, 0) + chunk_s(32, 256)
    assert cost.mixed_ns(3, 700, 0, chunks) == pytest.approx(expected * 1e9, abs=2)


def test_prefill_alone_launches_attention_once_a_layer():
    cost = compiled(cudagraph_capture_sizes=[512])
    expected = layers_s(512) + head_s(1) + chunk_s(64, 0) + 2 * 2e-6
    assert cost.mixed_ns(0, 0, 0, ((64, 0),)) == pytest.approx(expected * 1e9, abs=2)


def test_a_mixed_step_without_chunks_is_a_decode():
    assert compiled().mixed_ns(5, 700, 0, ()) == compiled().decode_ns(5, 700, 0)


def test_experts_and_all_reduce_by_hand():
    model = replace(TINY, moe=MoeSpec(8, 2, 32))
    cost = compiled(model, tensor_parallel_size=2, enforce_eager=True)
    parts = cost.parts(4, 400, 0, ())
    assert parts.seconds["moe"] == pytest.approx(2 * (3e-6 + 4e-9))
    reduce, gather = 5e-6 + 4 * 64 * 2 * 1e-12, 5e-6 + 4 * 1000 * 2 * 1e-12
    assert parts.seconds["all_reduce"] == pytest.approx(4 * reduce + 0.5 * gather)
    router = 1e-6 + 4 * 8 * 64 * 1e-15
    attention = 2e-6 + 4 * 1e-15 * (64 * (2 + 2) * 16 + 32 * 64)
    assert parts.seconds["gemm"] == pytest.approx(2 * (router + attention))


def test_eager_steps_cannot_outrun_their_launches():
    launches = 11 * 2 * HostOverhead.model_fields["call_s"].default
    assert compiled(enforce_eager=True).decode_ns(1, 1, 0) == round(launches * 1e9)
    assert compiled().decode_ns(1, 1, 0) < launches * 1e9
    above = compiled(cudagraph_capture_sizes=[8])
    assert above.mixed_ns(0, 0, 0, ((9, 0),)) == round(launches * 7 / 11 * 1e9)  # half a call where compiled


def test_eager_steps_pay_for_their_launches_unless_the_gpu_has_enough_to_do():
    model, profile = load_model("llama-3.1-8b"), load_profile("h100_sxm")
    graphs, eager = (
        compile_cost(model, profile, max_num_batched_tokens=8192, max_num_seqs=256, enforce_eager=how)
        for how in (False, True)
    )
    assert eager.decode_ns(1, 1000, 0) > 1.15 * graphs.decode_ns(1, 1000, 0)
    prompt = ((8192, 0),)
    assert eager.mixed_ns(0, 0, 0, prompt) == pytest.approx(graphs.mixed_ns(0, 0, 0, prompt), rel=0.01)
    waits = eager.parts(1, 1000, 0, ()).seconds["host_wait"]
    assert waits > 1e-3
    for num_seqs in (1, 2, 7, 20, 60):
        assert eager.decode_ns(num_seqs, 1000 * num_seqs, 0) > 0.98 * graphs.decode_ns(
            num_seqs, 1000 * num_seqs, 0
        )


def test_a_layer_has_more_operations_with_experts_qk_norms_more_gpus_and_quantised_inputs():
    assert calls_per_layer(load_model("llama-3.1-8b"), 1, "bfloat16") == 11
    assert calls_per_layer(load_model("llama-3.1-8b"), 2, "fp8") == 11 + 2 + 4
    assert calls_per_layer(load_model("qwen3-32b"), 1, "bfloat16") == 11 + 2
    assert calls_per_layer(load_model("mixtral-8x7b"), 1, "bfloat16") == 16
    assert calls_per_layer(load_model("mixtral-8x7b"), 1, "bfloat16", compiled=True) == 13


def test_the_hosts_own_work_hides_behind_the_gpu_only_under_async_scheduling():
    def host(cpu_base_s):
        overhead = HostOverhead(
            base_s=3e-6,
            per_layer_s=1e-6,
            per_seq_s=2e-6,
            cpu_base_s=cpu_base_s,
            cpu_per_seq_s=1e-7,
            source="test",
        )
        return ClosedFormProfile(host=overhead)

    overhead = 3e-6 + 2 * 1e-6 + 4 * 2e-6
    bare = layers_s(4) + head_s(4) + decode_s(4, 400)
    assert compiled(profile=host(1e-6)).decode_ns(4, 400, 0) == round((bare + overhead) * 1e9)
    slow = compiled(profile=host(1e-3))
    assert slow.decode_ns(4, 400, 0) == round((1e-3 + 4e-7 + overhead) * 1e9)
    assert slow.parts(4, 400, 0, ()).seconds["host_wait"] == pytest.approx(1e-3 + 4e-7 - bare)
    in_turn = compiled(profile=host(1e-3), async_scheduling=False)
    assert in_turn.decode_ns(4, 400, 0) == round((bare + overhead + 1e-3 + 4e-7) * 1e9)


@given(
    model=st.sampled_from([TINY, WINDOWED]),
    kinks=st.lists(st.integers(1, 5000), max_size=4),
    num_seqs=st.integers(1, 64),
    mean=st.integers(1, 300),
    window_share=st.floats(0, 1),
    growing_share=st.floats(0, 1),
    steps=st.integers(1, 400),
    base=st.sampled_from([0.0, 2.5e-5, 1e-4]),
)
@settings(max_examples=300, deadline=None)
def test_steps_in_bulk_equal_steps_one_by_one(
    *, model, kinks, num_seqs, mean, window_share, growing_share, steps, base
):
    profile = ClosedFormProfile(
        host=HostOverhead(base_s=0.0, cpu_base_s=base, source="test"), kinks=tuple(kinks)
    )
    cost = compiled(model, profile)
    context, window = num_seqs * mean, round(window_share * num_seqs * min(mean, 128))
    growing = round(growing_share * num_seqs)
    bulk = cost.decode_window_ns(num_seqs, context, window, growing, steps)
    single = [cost.decode_ns(num_seqs, context + num_seqs * j, window + growing * j) for j in range(steps)]
    assert bulk.dtype == np.int64
    assert bulk.tolist() == single


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b"])
def test_steps_in_bulk_equal_steps_one_by_one_on_a_shipped_profile(name):
    cost = compile_cost(
        load_model(name), load_profile("h100_sxm"), max_num_batched_tokens=2048, max_num_seqs=256
    )
    for num_seqs in (1, 3, 17, 64, 256):
        bulk = cost.decode_window_ns(num_seqs, num_seqs * 2, num_seqs * 2, num_seqs, 5000)
        single = [cost.decode_ns(num_seqs, num_seqs * (2 + j), num_seqs * (2 + j)) for j in range(5000)]
        assert bulk.tolist() == single


@given(
    num_seqs=st.integers(1, 64),
    mean=st.integers(1, 4000),
    kinks=st.lists(st.integers(1, 20000), max_size=3),
)
@settings(deadline=None)
def test_segments_stay_near_the_curve_and_never_fall(num_seqs, mean, kinks):
    profile = ClosedFormProfile(kinks=tuple(kinks))
    cost = compiled(profile=profile)
    context = num_seqs * mean
    exact = 1e9 * (
        layers_s(cost._padded[num_seqs])
        + head_s(num_seqs)
        + 2 * float(profile.decode_attention_s("bfloat16", 4, 2, 16, 0, num_seqs, context))
    )
    assert cost.decode_ns(num_seqs, context, 0) == pytest.approx(exact, rel=0.02, abs=1)
    assert cost.decode_ns(num_seqs, context + 1, 0) >= cost.decode_ns(num_seqs, context, 0)


@given(new=st.integers(1, 512), computed=st.integers(0, 4000), model=st.sampled_from([TINY, WINDOWED]))
@settings(deadline=None)
def test_chunk_grid_stays_near_the_curve(new, computed, model):
    cost = compiled(model)
    seconds = cost.parts(0, 0, 0, ((new, computed),)).seconds["prefill_attention"]
    exact = 0.0
    for layers, window in ((model.num_full_layers, 0), (model.num_window_layers, 128)):
        exact += layers * float(PROFILE.prefill_attention_s("bfloat16", 4, 2, 16, window, new, computed))
    assert seconds == pytest.approx(exact, rel=2e-3)


@given(
    model=st.sampled_from([TINY, WINDOWED]),
    num_seqs=st.integers(0, 64),
    chunks=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 1000)), max_size=3),
    tp=st.sampled_from([1, 2]),
    base=st.sampled_from([0.0, 1e-3]),
)
@settings(deadline=None)
def test_parts_sum_to_the_price(model, num_seqs, chunks, tp, base):
    if not num_seqs and not chunks:
        return
    host = HostOverhead(base_s=1e-6, per_seq_s=1e-6, per_token_s=1e-8, cpu_base_s=base, source="test")
    cost = compiled(model, ClosedFormProfile(host=host), tensor_parallel_size=tp)
    window = num_seqs * 100
    parts = cost.parts(num_seqs, num_seqs * 150, window, chunks)
    price = cost.mixed_ns(num_seqs, num_seqs * 150, window, chunks)
    assert price == pytest.approx(1e9 * parts.total_s, abs=1)
    assert parts.overhead_s + parts.compute_s == pytest.approx(parts.total_s)
    assert parts.hbm_bytes > 0
    assert (parts.link_bytes > 0) == (tp > 1)


def test_bytes_of_a_decode_by_hand():
    parts = compiled(enforce_eager=True).parts(4, 400, 0, ())
    weights = 2 * (64 * 128 + 64 * 64 + 64 * 256 + 128 * 64) * 2 + 1000 * 64 * 2
    assert parts.hbm_bytes == weights + 2 * 400 * 2 * 2 * 16 * 2


def test_the_window_is_reported_only_where_a_layer_uses_it():
    assert compiled().sliding_window is None
    assert compiled(WINDOWED).sliding_window == 128


def test_windowed_layers_follow_the_window_context_alone():
    cost = compiled(WINDOWED)
    both = cost.decode_ns(4, 4000, 512) - cost.decode_ns(4, 2000, 512)
    assert both == pytest.approx(32 * 2000 * 1e-3, abs=2)  # one layer of two, 1e-12 s a value
    assert cost.decode_ns(4, 4000, 512) - cost.decode_ns(4, 4000, 256) == pytest.approx(32 * 256e-3, abs=2)


def test_eight_bit_kv_is_read_no_faster_on_hopper():
    def slope(capability, kv_cache_dtype):
        profile = ClosedFormProfile(device=SimpleNamespace(compute_capability=capability))
        cost = compiled(profile=profile, kv_cache_dtype=kv_cache_dtype)
        return cost.decode_ns(4, 8000, 0) - cost.decode_ns(4, 4000, 0)

    assert slope("9.0", "fp8") == slope("9.0", "auto") == slope("8.0", "auto")
    assert slope("8.0", "fp8") == pytest.approx(slope("8.0", "auto") / 2, abs=1)


@pytest.mark.parametrize("gpu", ["h100_sxm", "h200_sxm", "b200_sxm"])
@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_eight_bit_experts_take_the_faster_kernel(gpu, name):
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    timed = load_profile(gpu).with_served(Served(source="as timed"))
    plain, quantised, block = (
        compile_cost(load_model(name), timed, weight_dtype=dtype, **limits)
        for dtype in ("auto", "fp8", "fp8_block")
    )
    for num_seqs in (1, 16, 64):
        price = quantised.parts(num_seqs, num_seqs * 500, 0, ()).seconds["moe"]
        assert price <= block.parts(num_seqs, num_seqs * 500, 0, ()).seconds["moe"]
        assert price < 1.02 * plain.parts(num_seqs, num_seqs * 500, 0, ()).seconds["moe"]
    assert (
        "experts are priced by the fastest of the measured kernels, fp8 and fp8_block" in quantised.notes[0]
    )
    assert plain.notes == ()


def test_experts_that_the_checkpoint_quantised_stay_as_they_are():
    model, profile = load_model("gpt-oss-120b"), load_profile("h200_sxm")
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    own, asked = (compile_cost(model, profile, weight_dtype=d, **limits) for d in ("auto", "fp8"))
    experts = [cost.parts(8, 8000, 1000, ()).seconds["moe"] for cost in (own, asked)]
    assert experts[0] == experts[1]
    assert "experts of gpt-oss-120b stay mxfp4" in asked.notes[0]
    assert model.weight_bytes("fp8") < model.weight_bytes()


def test_what_prices_assume_is_said_where_it_matters():
    def notes(gpu, **changes):
        limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
        return compile_cost(load_model("llama-3.1-8b"), load_profile(gpu), **limits, **changes).notes

    assert notes("h100_sxm") == ()
    (whence,) = notes("l40s", kv_cache_dtype="fp8")
    assert whence == (
        "profile l40s: what an engine adds to its kernels is taken over from h100_sxm, not measured here"
    )
    (kv,) = notes("h100_sxm", kv_cache_dtype="fp8")
    assert "decode attention is priced as with a 16-bit cache" in kv
    (slower,) = notes("b200_sxm", weight_dtype="fp8")
    assert "slower than 16-bit weights where the tokens of a step are 1 " in slower
    beside, eager, _ = notes("a100_sxm", enforce_eager=True)
    assert "decodes beside prompts is priced as alone" in beside
    assert "44 us" in eager
    for mode in ("none", "full_decode_only"):
        (bound,) = notes("h100_sxm", cudagraph_mode=mode)
        assert bound.startswith("steps without a CUDA graph are bound by the host's calls, 21 us each")


def test_extrapolation_is_named():
    assert compiled().extrapolated == {}
    said = compiled(profile=ClosedFormProfile(largest_m=100)).extrapolated
    assert said == {"gemm": "gemm: m = 512 outside 1 to 100"}


def test_what_cannot_be_priced_is_refused_when_compiled():
    with pytest.raises(ConfigError, match="deepseek-v3 uses latent attention"):
        compiled(load_model("deepseek-v3"))
    with pytest.raises(ConfigError, match=r"hardware\.tensor_parallel_size: 3"):
        compiled(tensor_parallel_size=3)
    with pytest.raises(ConfigError, match="no gemm curve for nvfp4"):
        compiled(weight_dtype="nvfp4")
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_dtype"):
        compiled(kv_cache_dtype="int3")


@pytest.mark.parametrize("name", shipped_profiles())
def test_no_step_is_faster_than_its_memory(name):
    profile = load_profile(name)
    cost = compile_cost(load_model("llama-3.1-8b"), profile, max_num_batched_tokens=2048, max_num_seqs=64)
    for num_seqs in (1, 8, 64):
        for mean in (16, 1024, 16384):
            parts = cost.parts(num_seqs, num_seqs * mean, 0, ())
            assert parts.total_s > parts.hbm_bytes / profile.device.hbm_bytes_per_s
            assert parts.total_s < 10 * parts.hbm_bytes / profile.device.hbm_bytes_per_s
