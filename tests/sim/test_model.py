"""The model table against the derived figures, and readers of config.json."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sim.memory import kv_capacity
from sim.model import load_model, shipped_models
from workloads.errors import ConfigError

DATA = Path(os.environ.get("SERVETWIN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def write_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA_8B, **fields}))
    return path


def test_twenty_models_are_shipped():
    assert len(shipped_models()) == 20


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [("mistral-nemo-2407", 12.2, 12.2), ("yi-34b", 34.4, 34.4), ("llama-4-scout-17b-16e", 109, 17)],
)
def test_sizes_are_those_that_their_makers_publish(name, billions, active):
    model = load_model(name)  # of Scout all but the vision tower
    assert model.params_total / 1e9 == pytest.approx(billions, rel=0.015)
    assert model.params_active_per_token / 1e9 == pytest.approx(active, rel=0.015)


@pytest.mark.parametrize("name", shipped_models())
def test_table_agrees_with_the_derived_figures(name):
    path = DATA / "models" / f"{name}.json"
    if not path.is_file():
        pytest.skip("no measured data here (set SERVETWIN_DATA)")
    derived = json.loads(path.read_text())["derived"]
    model = load_model(name)
    assert model.params_total == derived["params_total"]
    assert model.params_active_per_token == derived["params_active_per_token"]
    assert model.kv_bytes_per_token() == derived["kv_bytes_per_token_16bit"]


def test_llama_8b_by_hand():
    model = load_model("meta-llama/Llama-3.1-8B-Instruct")
    attention = 4096 * 4096 * 2 + 4096 * 1024 * 2
    layer = attention + 3 * 4096 * 14336
    assert model.params_total == 32 * layer + 2 * 128256 * 4096
    assert model.weight_bytes("bfloat16") == 2 * model.params_total
    assert model.weight_bytes("fp8") == 32 * layer + 2 * 2 * 128256 * 4096  # embeddings and head stay 16-bit
    assert model.weight_bytes("nvfp4") == 32 * layer * 9 // 16 + 2 * 2 * 128256 * 4096
    assert model.kv_bytes_per_token("fp8") == 32 * 2 * 8 * 128


def test_kv_heads_are_copied_beyond_their_number():
    model = load_model("qwen2.5-7b")  # 28 heads, 4 KV heads
    assert model.kv_heads_per_gpu(4) == 1
    assert load_model("qwen3-235b-a22b").kv_heads_per_gpu(8) == 1
    with_copies = load_model("qwen3-235b-a22b").weight_bytes("bfloat16", 8)
    assert with_copies > load_model("qwen3-235b-a22b").weight_bytes("bfloat16", 1) / 8


def test_tensor_parallel_size_must_divide_the_heads():
    with pytest.raises(ConfigError, match=r"tensor_parallel_size: 3 .* use one of 1, 2, 4"):
        load_model("llama-3.1-8b").weight_bytes("bfloat16", 3)


def test_experts_of_gpt_oss_are_four_bit():
    model = load_model("gpt-oss-120b")
    assert model.resolve_weight_dtype("auto") == "bfloat16"
    assert model.resolve_expert_dtype("auto") == "mxfp4"
    assert 64e9 < model.weight_bytes() < 67e9  # the published checkpoint: 65 GB
    assert (model.sliding_window, model.num_window_layers, model.num_full_layers) == (128, 18, 18)


def test_unknown_name_offers_the_nearest():
    with pytest.raises(ConfigError, match=r"'lama-3.1-8b'.*nearest: llama-3.1-8b"):
        load_model("lama-3.1-8b")


def test_unknown_dtypes_are_refused():
    model = load_model("llama-3.1-8b")
    with pytest.raises(ConfigError, match="weight_dtype: 'int3'"):
        model.weight_bytes("int3")
    with pytest.raises(ConfigError, match="kv_cache_dtype: 'int3'"):
        model.kv_bytes_per_token("int3")


def test_config_json_equals_the_shipped_model(tmp_path):
    read, shipped = load_model(write_config(tmp_path)), load_model("llama-3.1-8b")
    assert read.params_total == shipped.params_total
    assert read.head_dim == shipped.head_dim
    assert load_model(tmp_path) == read  # the folder will do


def test_a_config_inside_the_meta_data_of_a_recorded_run(tmp_path):
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps({"run": "one", "model": json.loads(write_config(tmp_path).read_text())}))
    assert replace(load_model(meta), source="config.json") == load_model(tmp_path)
    meta.write_text(json.dumps({"run": "one", "model": "llama-3.1-8b"}))
    with pytest.raises(ConfigError, match="no field 'architectures'"):
        load_model(meta)


def test_config_of_gpt_oss_like_experts(tmp_path):
    path = write_config(
        tmp_path,
        architectures=["GptOssForCausalLM"],
        num_local_experts=32,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 16,
        quantization_config={"quant_method": "mxfp4"},
    )
    model = load_model(path)
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.top_k) == (32, 4)
    assert model.moe.expert_intermediate_size == 14336
    assert (model.num_window_layers, model.expert_weight_dtype) == (16, "mxfp4")


@pytest.mark.parametrize(
    ("architecture", "fields", "layers"),
    [
        ("MistralForCausalLM", {"sliding_window": 4096}, 32),
        ("MistralForCausalLM", {"sliding_window": None}, 0),
        ("Qwen2ForCausalLM", {"sliding_window": 4096, "use_sliding_window": False}, 0),
        ("Qwen2ForCausalLM", {"sliding_window": 4096, "max_window_layers": 28}, 4),
        ("Gemma2ForCausalLM", {"sliding_window": 4096}, 16),
        ("Gemma3ForCausalLM", {"sliding_window": 1024}, 27),
    ],
)
def test_which_layers_use_the_window(tmp_path, architecture, fields, layers):
    model = load_model(write_config(tmp_path, architectures=[architecture], **fields))
    assert model.num_window_layers == layers
    assert (model.sliding_window is None) == (layers == 0)


def test_nested_text_config_and_quantization(tmp_path):
    path = tmp_path / "config.json"
    nested = {k: v for k, v in LLAMA_8B.items() if k != "architectures"}
    document = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": nested,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    path.write_text(json.dumps(document))
    model = load_model(path)
    assert (model.num_layers, model.tie_word_embeddings, model.weight_dtype) == (32, True, "fp8_block")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not known; known: .*Llama"),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "MLA"),
        ({"architectures": []}, "architectures"),
        ({"vocab_size": None}, "'vocab_size' is None; expected a positive integer"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' is not known"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0]}, "dense layers between"),
    ],
)
def test_unusable_configs_say_why(tmp_path, fields, message):
    with pytest.raises(ConfigError, match=message):
        load_model(write_config(tmp_path, **fields))


def test_a_file_that_is_not_json(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="not a readable JSON"):
        load_model(path)


def test_float32_weights_take_activations_and_the_cache_with_them():
    model = load_model("llama-3.1-8b")
    assert model.weight_bytes("float32") == 2 * model.weight_bytes("bfloat16")
    assert (model.plain_dtype("float32"), model.plain_dtype("fp8")) == ("float32", "bfloat16")
    assert model.resolve_kv_dtype("auto", "float32") == "float32"
    assert model.resolve_kv_dtype("fp8", "float32") == "fp8"
    assert model.kv_bytes_per_token("float32") == 2 * model.kv_bytes_per_token("auto")
    limits = {"memory_bytes": 10**11, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    plain, wide = (kv_capacity(model, weight_dtype=dtype, **limits) for dtype in ("bfloat16", "float32"))
    assert wide.block_bytes == 2 * plain.block_bytes
    assert wide.activation_bytes > plain.activation_bytes
