"""The section `kv_compression`: what it refuses, what it repeats, and what of published results comes out."""

from __future__ import annotations

from fractions import Fraction

import pytest

from sim.kv.compression import KvCompression
from sim.scenario.kv_compression import KvCompressionConfig
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.service import build_service
from sim.simulation import simulate
from workloads.errors import ConfigError

BASE = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100_sxm"},
    "workload": {"input_tokens": 400, "output_tokens": 20, "request_rate": 20, "num_requests": 20},
}


def scenario(*overrides: str) -> Scenario:
    return load_scenario(BASE, overrides)


def test_nothing_is_compressed_by_default():
    assert KvCompressionConfig().build() is None
    assert KvCompressionConfig(layer_keep={"low": 1.0}).build() is None
    result = simulate(scenario())
    assert result.summary["sim"]["kv_compression"] is None
    assert not any("kv_compression" in warning for warning in result.summary["sim"]["warnings"])


@pytest.mark.parametrize(
    ("given", "built"),
    [
        ({"hot_tokens": 64}, KvCompression(recent_tokens=64, older_dtype="fp8")),
        ({"hot_tokens": 64, "cold_dtype": "int8"}, KvCompression(recent_tokens=64, older_dtype="int8")),
        ({"keep_ratio": 0.6}, KvCompression(recent_tokens=0, older_kept=Fraction(3, 5))),
        ({"keep_ratio": 0.6, "keep_recent": 32}, KvCompression(recent_tokens=32, older_kept=Fraction(3, 5))),
        (
            {"keep_ratio": 0.6, "hot_tokens": 64},
            KvCompression(recent_tokens=64, older_kept=Fraction(3, 5), older_dtype="fp8"),
        ),
        ({"sliding_window": 256}, KvCompression(recent_tokens=256, older_kept=Fraction(0))),
        ({"owning_layers": 0.5}, KvCompression(owning_layers=0.5)),
        ({"layer_keep": {"high": 0.4}}, KvCompression(layer_keep=(1.0, 1.0, 0.4))),
    ],
)
def test_what_the_fields_mean(given, built):
    assert KvCompressionConfig(**given).build() == built


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kv_compression.cold_dtype=int8"], "kv_compression: .*set hot_tokens"),
        (["kv_compression.keep_recent=5"], "set keep_ratio below 1"),
        (["kv_compression.quality={bleu_delta: -0.9}"], "quality: nothing is compressed"),
        (
            ["kv_compression.sliding_window=64", "kv_compression.hot_tokens=32"],
            "leave hot_tokens and keep_ratio",
        ),
        (
            ["kv_compression.sliding_window=64", "kv_compression.keep_ratio=0.5"],
            "leave hot_tokens and keep_ratio",
        ),
        (
            [f"kv_compression.{field}" for field in ("hot_tokens=64", "keep_ratio=0.5", "keep_recent=32")],
            "leave keep_recent out",
        ),
        (["kv_compression.keep_ratio=0"], "kv_compression.keep_ratio"),
        (["kv_compression.layer_keep={upper: 0.5}"], "kv_compression.layer_keep"),
        (
            ["kv_compression.hot_tokens=64", "engine.enable_prefix_caching=true"],
            "prefix cache hold every token",
        ),
        (["kv_compression.sliding_window=64", "policies.allocator=grow"], "allocator: grow knows no tokens"),
        (["kv_compression.hot_tokens=64", "engine.kv_cache_dtype=fp8"], "no 16-bit tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        scenario(*overrides)


def test_a_model_with_a_window_of_its_own_is_refused_by_name():
    with pytest.raises(ConfigError, match="kv_compression: mistral-7b has a sliding window of 4096"):
        build_service(scenario("kv_compression.hot_tokens=64", "model=mistral-7b"))


def test_a_device_without_8_bit_kernels_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"kv_compression\.cold_dtype: profile a100_sxm: no decode_attention curve for fp8"
    ):
        build_service(scenario("kv_compression.hot_tokens=64", "hardware.gpu=a100_sxm"))
    assert build_service(scenario("kv_compression.keep_ratio=0.5", "hardware.gpu=a100_sxm")).cost.decode_ns(
        1, 9, 0
    )


def test_layers_may_share_beside_a_prefix_cache():
    shared = simulate(scenario("kv_compression.owning_layers=0.5", "engine.enable_prefix_caching=true"))
    assert shared.service.capacity.block_bytes == 16 * 65536


def test_quality_is_repeated_and_said_not_to_be_simulated():
    result = simulate(
        scenario("kv_compression.keep_ratio=0.6", "kv_compression.quality={bleu_delta_top_k: -0.9}")
    )
    said = result.summary["sim"]
    assert said["kv_compression"]["assumptions"] == {"bleu_delta_top_k": -0.9}
    assert (said["kv_compression"]["recent_token_share"], said["kv_compression"]["older_token_share"]) == (
        1,
        0.6,
    )
    assert any("quality is not simulated" in warning for warning in said["warnings"])
    assert "kv_compression.quality, assumed: bleu_delta_top_k -0.9" in said["warnings"]
    plain = simulate(scenario("kv_compression.keep_ratio=0.6"))
    assert plain.summary["total_token_throughput"] == result.summary["total_token_throughput"]


def test_a_window_bounds_what_a_sequence_holds():
    """400 tokens of prompt hold no more than the 128 of the window and a block beyond them."""
    result = simulate(scenario("kv_compression.sliding_window=128", "workload.num_requests=1"))
    peak = result.summary["sim"]["kv_usage_peak"] * result.service.capacity.usable_blocks
    assert peak == pytest.approx(-(-127 // 16) + 1)
    assert build_service(scenario("kv_compression.sliding_window=128")).max_model_len == 131072
