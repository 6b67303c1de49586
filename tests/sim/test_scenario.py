"""Every mistake in a scenario is one line that names the field and what would be right."""

from __future__ import annotations

import re

import pytest
import yaml

from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.scenario.vllm_flags import parse_vllm_command
from sim.scenario.writing import scenario_text
from workloads.errors import ConfigError, InputError

GOOD = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200_sxm"},
    "workload": {"input_tokens": 100, "output_tokens": 10, "request_rate": 5, "num_requests": 20},
}

BAD_FIELDS = [
    ("engine.max_num_seq=8", "engine.max_num_seq", "did you mean max_num_seqs?"),
    ("engine.max_num_seqs=0", "engine.max_num_seqs", "greater than or equal to 1"),
    ("engine.max_num_seqs=2.5", "engine.max_num_seqs", "integer"),
    ("engine.max_num_seqs=many", "engine.max_num_seqs", "integer"),
    ("engine.max_num_batched_tokens=100", "engine", "at least max_num_seqs"),
    ("engine.block_size=0", "engine.block_size", "greater than or equal to 1"),
    ("engine.gpu_memory_utilization=1.2", "engine.gpu_memory_utilization", "less than or equal to 1"),
    ("engine.gpu_memory_utilization=-1", "engine.gpu_memory_utilization", "greater than 0"),
    ("engine.num_gpu_blocks_override=1", "engine.num_gpu_blocks_override", "greater than or equal to 2"),
    ("engine.kv_cache_dtype=int4", "engine.kv_cache_dtype", "'auto', 'float32', 'bfloat16' or 'fp8'"),
    ("engine.enable_prefix_caching=perhaps", "engine.enable_prefix_caching", "boolean"),
    ("engine.cache_at_start=hot", "engine.cache_at_start", "'cold' or 'warm'"),
    ("engine.cache_at_start=warm", "engine", "needs enable_prefix_caching"),
    ("engine=7", "engine", "takes fields"),
    ("engine.max_num_seqs=true", "engine.max_num_seqs", "integer"),
    ("engine.max_num_batched_tokens=1e24", "engine.max_num_batched_tokens", ""),
    ("slo.ttft_ms=.inf", "slo.ttft_ms", "finite"),
    (
        "engine={enforce_eager: true, cudagraph_capture_sizes: [1, 2]}",
        "engine",
        "leave cudagraph_capture_sizes out",
    ),
    ("hardware.gpu=null", "hardware", "either gpu"),
    ("hardware.profile=x.json", "hardware", "either gpu"),
    ("hardware.tensor_parallel_size=0", "hardware.tensor_parallel_size", "greater than or equal to 1"),
    ("hardware.weight_dtype=int8", "hardware.weight_dtype", "'fp8'"),
    ("cluster.replicas=0", "cluster.replicas", "greater than or equal to 1"),
    ("cluster.signal_delay_ms=-1", "cluster.signal_delay_ms", "greater than or equal to 0"),
    ("cluster.price_per_gpu_hour=free", "cluster.price_per_gpu_hour", "number"),
    ("policies.batcher=chunkd", "policies.batcher", "did you mean chunked?"),
    ("policies.batcher={target_tpot_ms: 3}", "policies.batcher", "name"),
    ("policies.batcher.chunk_tokens=0", "policies.batcher.chunk_tokens", "greater than or equal to 1"),
    ("policies.batcher.chunk=1", "policies.batcher.chunk", "did you mean chunk_tokens?"),
    (
        "policies.batcher={name: dynamic_chunked, kv_headroom: 1}",
        "policies.batcher.kv_headroom",
        "less than 1",
    ),
    ("policies.router=random", "policies.router", "'round_robin'"),
    ("policies.allocator=page", "policies.allocator", "did you mean paged?"),
    ("policies.allocator={name: contiguous, reserve: all}", "policies.allocator.reserve", "'power_of_two'"),
    (
        "policies.allocator={name: size_class, shares: [1, 1]}",
        "policies.allocator.shares",
        "3 classes, not 2",
    ),
    ("policies.eviction=lfu", "policies.eviction", "set engine.enable_prefix_caching: true"),
    ("policies.eviction=lifo", "policies.eviction", "did you mean fifo?"),
    ("policies.prefetch=stride", "policies.prefetch", "set kv_access.pattern"),
    ("policies.prefetch=strides", "policies.prefetch", "did you mean stride?"),
    ("kv_access.resident=0.5", "kv_access", "set pattern to full"),
    ("kv_access.pattern=topk", "kv_access.pattern", "did you mean top_k?"),
    (
        "kv_access={pattern: full, resident: 0.5, resident_gib: 1}",
        "kv_access",
        "either resident or resident_gib",
    ),
    ("kv_access={pattern: full, resident: 2}", "kv_access.resident", "less than or equal to 1"),
    ("kv_access.pattern={name: recorded}", "kv_access.pattern.path", "is missing"),
    ("slo.ttft_ms=0", "slo.ttft_ms", "greater than 0"),
    ("slo.p99_ttft_ms=5", "slo.p99_ttft_ms", "ttft_ms"),
    ("simulation.fast_forward=perhaps", "simulation.fast_forward", "boolean"),
    ("seed=-1", "seed", "greater than or equal to 0"),
    ("sed=1", "sed", "did you mean seed?"),
    ("workload.request_rate=0", "workload.request_rate", "greater than 0"),
    ("workload.request_rate=null", "workload.request_rate", "missing"),
    ("workload.input_tokens=0", "workload.input_tokens", "token"),
    ("workload.output_tokens={uniform: [9, 3]}", "workload.output_tokens.uniform", "low 9 is above high 3"),
    ("workload.num_requests=0", "workload.num_requests", "greater than or equal to 1"),
    ("workload.max_concurrency=4", "workload.max_concurrency", "request_rate"),
    ("workload=null", "workload", ""),
]


@pytest.mark.parametrize(("override", "field", "remedy"), BAD_FIELDS, ids=[bad[0] for bad in BAD_FIELDS])
def test_bad_fields(override, field, remedy):
    with pytest.raises(ConfigError) as caught:
        load_scenario(GOOD, [override])
    message = str(caught.value)
    assert message.startswith(f"scenario: {field}:")
    assert remedy in message
    assert "\n" not in message
    assert "pydantic" not in message


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("engine.max_num_seqs", "PATH=VALUE"),
        ("=3", "PATH=VALUE"),
        ("a..b=3", "PATH=VALUE"),
        ("seed=[1", "YAML"),
        ("model.name=x", "no fields inside"),
    ],
)
def test_bad_overrides(override, remedy):
    with pytest.raises(ConfigError, match=remedy):
        load_scenario(GOOD, [override])


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"model: [", ":1: not YAML"),
        (b"a: 1\nb: 2\n c: 3\n", ":3: not YAML"),
        (b"- 1\n- 2\n", "a scenario is a mapping"),
        (b"", "a scenario is a mapping"),
        (b"\x00\x01\x02", "not YAML"),
        (b"\xff\xfe\xff", "cannot be read as text"),
        (b"model: llama-3.1-8b\n", "hardware: is missing"),
        (b"model: x\nmodel: y\n", ":2: not YAML: 'model' stands there twice"),
        (b"[" * 5000, "nested too deeply"),
    ],
)
def test_bad_files(tmp_path, content, where):
    path = tmp_path / "scenario.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert where in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_scenario(tmp_path)


def test_overrides_apply_in_order_and_read_yaml():
    scenario = load_scenario(
        GOOD,
        [
            "engine.max_num_seqs=8",
            "engine.max_num_seqs=9",
            "policies.batcher.chunk_tokens=77",
            "slo={ttft_ms: 5}",
        ],
        seed=3,
    )
    assert scenario.engine.max_num_seqs == 9
    assert scenario.policies.batcher.chunk_tokens == 77
    assert scenario.slo.limits_ms == {"ttft": 5.0}
    assert scenario.seed == 3
    assert "engine" not in GOOD  # the source is left as it was


def test_numbers_are_read_as_people_mean_them():
    scenario = load_scenario(
        GOOD, ["workload.request_rate=1e1", "workload.num_requests=010", "slo.ttft_ms=5e-1"]
    )
    assert scenario.workload.request_rate == 10
    assert scenario.workload.num_requests == 10
    assert scenario.slo.ttft_ms == 0.5


def test_an_option_can_be_set_on_a_policy_named_by_a_word():
    raw = {**GOOD, "policies": {"batcher": "dynamic_chunked"}}
    scenario = load_scenario(raw, ["policies.batcher.target_tpot_ms=12"])
    assert scenario.policies.batcher.target_tpot_ms == 12


def test_paths_are_relative_to_the_scenario(tmp_path, monkeypatch):
    (tmp_path / "lengths.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,5,5\n")
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({**GOOD, "workload": {"trace": "lengths.csv"}}))
    monkeypatch.chdir("/")
    assert load_scenario(path).workload.trace == str(tmp_path / "lengths.csv")


def test_what_init_writes_is_a_scenario_and_says_every_default():
    written = yaml.safe_load(scenario_text({}))
    scenario = load_scenario(written)
    assert scenario.engine == Scenario.model_validate(GOOD).engine
    for name in Scenario.model_fields:
        assert name in written


def test_a_vllm_command_line_becomes_fields_and_remarks():
    command = parse_vllm_command(
        "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max_num_seqs=128 --max-num-batched-tokens 8K "
        "--max-model-len 32k --quantization fp8 --kv-cache-dtype fp8_e4m3 --enforce-eager --data-parallel-size 2 "
        "--gpu-memory-utilization 0.95 --no-enable-prefix-caching --port 8000 --speculative-config '{}' "
        "--no-enable-chunked-prefill"
    )
    assert command.fields == {
        "model": "llama-3.1-70b",
        "hardware.tensor_parallel_size": 4,
        "hardware.weight_dtype": "fp8",
        "engine.max_num_seqs": 128,
        "engine.max_num_batched_tokens": 8192,
        "engine.max_model_len": 32000,
        "engine.kv_cache_dtype": "fp8",
        "engine.enforce_eager": True,
        "engine.gpu_memory_utilization": 0.95,
        "cluster.replicas": 2,
        "engine.enable_prefix_caching": False,
        "policies.batcher": "continuous",
    }
    assert command.remarks == ["--speculative-config {} is not simulated"]
    load_scenario(yaml.safe_load(scenario_text(command.fields, command.remarks)))


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve Qwen/Qwen3-8B -q fp8 --cudagraph-capture-sizes 1 2 4",
        "CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-8B-FP8 --cudagraph_capture_sizes 1 2 4",
        "python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B-FP8 --cudagraph-capture-sizes=1,2,4",
        (
            "docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model Qwen/Qwen3-8B --quantization fp8 "
            "--cudagraph-capture-sizes 1 2 4"
        ),
    ],
)
def test_the_ways_to_start_a_server_mean_the_same(line):
    fields = parse_vllm_command(line).fields
    assert fields == {
        "model": "qwen3-8b",
        "hardware.weight_dtype": "fp8",
        "engine.cudagraph_capture_sizes": [1, 2, 4],
        "engine.enable_prefix_caching": True,
    }


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("vllm serve qwen3-8b -pp 2", "only 1 is simulated"),
        ("vllm serve", "names no model"),
        ("vllm serve llama-3.1-8b --max-num-seqs", "needs a value"),
        ("vllm serve llama-3.1-8b --max-num-seqs few", "whole number"),
        ("vllm serve llama-3.1-8b qwen3-8b", "two models"),
        ("vllm serve 'llama", "not a command line"),
        ("vllm serve gpt-7", "nearest"),
        ("vllm serve llama-3.1-8b --quantization awq", "not simulated"),
    ],
)
def test_bad_vllm_command_lines(line, remedy):
    with pytest.raises(InputError, match=remedy):
        parse_vllm_command(line)


def test_graphs_of_a_compilation_config():
    said = parse_vllm_command(
        "vllm serve Qwen/Qwen3-8B -cc "
        """'{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8], "custom_ops": ["+rms_norm"]}'"""
    )
    assert said.fields["engine.cudagraph_mode"] == "full_decode_only"
    assert said.fields["engine.cudagraph_capture_sizes"] == [1, 8]
    assert said.remarks == ["--compilation-config: custom_ops is not simulated"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            '\'{"cudagraph_mode": "PIECEWISE"}\'',
            "cudagraph_mode PIECEWISE is not simulated; known are FULL_AND_P",
        ),
        ("3", "--compilation-config 3: a JSON object is expected"),
    ],
)
def test_a_compilation_config_that_cannot_be_read(config, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_vllm_command(f"vllm serve Qwen/Qwen3-8B --compilation-config {config}")
