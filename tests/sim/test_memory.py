"""KV capacity against the block counts that real engines logged, and by hand."""

from __future__ import annotations

import csv
import json
import math
import os
from fractions import Fraction
from pathlib import Path

import pytest

from sim.cost.cuda_graphs import capture_sizes, padded_tokens
from sim.errors import CapacityError
from sim.kv.compression import KvCompression
from sim.memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    GRAPH_LAYER_BYTES,
    LOGIT_BYTES,
    SAMPLER_BYTES,
    kv_capacity,
)
from sim.model import load_model
from workloads.errors import ConfigError

DATA = Path(os.environ.get("SERVETWIN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
# CUDA's own total (cudaMemGetInfo, which the engine multiplies), as out-of-memory messages of H100 80GB print
# it with drivers from 570 on; nvidia-smi's 81,559 MiB are 0.6% more.
H100_BYTES = round(79.19 * 2**30)
LLAMA_8B = load_model("llama-3.1-8b")


def test_rtx_4090_log():
    path = DATA / "real_runs_llmservingsim" / "rtx4090_llama-3.1-8b_tp1" / "engine.json"
    if not path.is_file():
        pytest.skip("no measured data here (set SERVETWIN_DATA)")
    run = json.loads(path.read_text())
    capacity = kv_capacity(
        LLAMA_8B,
        memory_bytes=run["hardware"]["device_total_memory_bytes"],
        max_num_batched_tokens=run["engine_kwargs"]["max_num_batched_tokens"],
        max_num_seqs=run["engine_kwargs"]["max_num_seqs"],
        gpu_memory_utilization=run["kv_cache"]["gpu_memory_utilization"],
    )
    assert capacity.num_gpu_blocks == pytest.approx(run["kv_cache"]["num_gpu_blocks"], rel=0.01)


@pytest.mark.parametrize("table", ["experiments.csv", "blind_inputs_only.csv"])
def test_h100_logs(table):
    path = DATA / "vllm_h100_perrequest" / table
    if not path.is_file():
        pytest.skip("no measured data here (set SERVETWIN_DATA)")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        capacity = kv_capacity(
            load_model(row["model"]),
            memory_bytes=H100_BYTES,
            tensor_parallel_size=int(row["tp"]),
            max_num_batched_tokens=int(row["max_num_batched_tokens"]),
            max_num_seqs=int(row["max_num_seqs"]),
        )
        assert capacity.num_gpu_blocks == pytest.approx(int(row["kv_blocks_total_gpu"]), rel=0.02)


def test_parts_by_hand():
    capacity = kv_capacity(
        LLAMA_8B,
        memory_bytes=40_000_000_000,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        gpu_memory_utilization=0.5,
    )
    # A few rows of logits stay below the MLP's gate, up and product beside hidden states and residual.
    assert capacity.activation_bytes == 2 * 2048 * (2 * 4096 + 3 * 14336)
    assert capacity.graph_bytes == GRAPH_LAYER_BYTES * 32 * (4 + 3)  # piecewise 1, 2, 4, 8; full 1, 2, 4
    assert capacity.context_bytes == CONTEXT_BYTES
    assert capacity.block_bytes == 16 * 131072
    free = 20_000_000_000 - LLAMA_8B.weight_bytes() - capacity.activation_bytes
    free -= capacity.graph_bytes + CONTEXT_BYTES
    assert capacity.num_gpu_blocks == free // (16 * 131072)
    assert capacity.usable_blocks == capacity.num_gpu_blocks - 1
    assert capacity.max_tokens == 16 * capacity.usable_blocks


def test_logits_of_many_sequences_are_the_peak():
    many = kv_capacity(LLAMA_8B, memory_bytes=H100_BYTES, max_num_batched_tokens=2048, max_num_seqs=1024)
    assert many.activation_bytes == 2 * 2048 * 4096 + LOGIT_BYTES * 1024 * 128256 + SAMPLER_BYTES


def test_a_communicator_counts_once_there_is_someone_to_talk_to():
    two = kv_capacity(
        LLAMA_8B,
        memory_bytes=H100_BYTES,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        tensor_parallel_size=2,
    )
    assert two.context_bytes == CONTEXT_BYTES + COMMUNICATOR_BYTES


def test_eager_engines_keep_no_graphs():
    eager = kv_capacity(
        LLAMA_8B, memory_bytes=H100_BYTES, max_num_batched_tokens=2048, max_num_seqs=64, enforce_eager=True
    )
    assert eager.graph_bytes == 0


def test_half_the_kv_bytes_hold_twice_the_blocks():
    common = {"memory_bytes": H100_BYTES, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    wide = kv_capacity(LLAMA_8B, **common)
    narrow = kv_capacity(LLAMA_8B, kv_cache_dtype="fp8", **common)
    assert narrow.num_gpu_blocks // 2 == wide.num_gpu_blocks


def test_a_block_of_gpt_oss_covers_one_kind_of_layer():
    capacity = kv_capacity(
        load_model("gpt-oss-120b"), memory_bytes=H100_BYTES, max_num_batched_tokens=2048, max_num_seqs=64
    )
    assert capacity.block_bytes == 18 * 16 * 2 * 8 * 64 * 2


def test_override_wins():
    capacity = kv_capacity(
        load_model("llama-3.1-70b"),
        memory_bytes=H100_BYTES,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        num_gpu_blocks_override=128,
    )
    assert (capacity.num_gpu_blocks, capacity.usable_blocks, capacity.overridden) == (128, 127, True)


def test_a_model_too_large_says_what_would_help():
    with pytest.raises(
        CapacityError, match=r"llama-3.1-70b needs 14\d\.\d GB .* of 76\.5 GB;.*weight_dtype: fp8"
    ):
        kv_capacity(
            load_model("llama-3.1-70b"), memory_bytes=H100_BYTES, max_num_batched_tokens=2048, max_num_seqs=64
        )


def test_default_capture_sizes():
    assert capture_sizes(4, 2048) == (1, 2, 4, 8)
    assert capture_sizes(256, 8192) == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    assert capture_sizes(1024, 8192)[-1] == 512
    assert capture_sizes(256, 100)[-1] == 96
    assert capture_sizes(256, 8192, enforce_eager=True) == ()
    assert capture_sizes(256, 64, cudagraph_capture_sizes=[64, 128, 8, 8]) == (8, 64)
    with pytest.raises(ConfigError, match="cudagraph_capture_sizes"):
        capture_sizes(256, 64, cudagraph_capture_sizes=[])


def test_padding_to_the_next_size():
    assert padded_tokens((1, 2, 4, 8), 10).tolist() == [0, 1, 2, 4, 4, 8, 8, 8, 8, 9, 10]
    assert padded_tokens((), 3).tolist() == [0, 1, 2, 3]


def test_a_compressed_cache_has_smaller_blocks():
    common = {"memory_bytes": H100_BYTES, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    plain = kv_capacity(LLAMA_8B, **common)
    shared = kv_capacity(LLAMA_8B, **common, compression=KvCompression(owning_layers=0.75))
    assert 4 * shared.block_bytes == 3 * plain.block_bytes
    assert 3 * shared.num_gpu_blocks // 4 == pytest.approx(plain.num_gpu_blocks, abs=1)
    pruned = kv_capacity(LLAMA_8B, **common, compression=KvCompression(layer_keep=(0.753, 1.0, 0.427)))
    stored = 11 * 0.753 + 11 + 10 * 0.427
    assert pruned.block_bytes == math.ceil(plain.block_bytes * stored / 32)


def test_older_tokens_that_shrink_let_a_longer_sequence_fit():
    common = {"memory_bytes": H100_BYTES, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    plain = kv_capacity(LLAMA_8B, **common)
    cold = kv_capacity(LLAMA_8B, **common, compression=KvCompression(recent_tokens=160, older_dtype="fp8"))
    assert cold.num_gpu_blocks == plain.num_gpu_blocks  # of recent tokens
    assert cold.max_tokens == 160 + 16 + 2 * (plain.max_tokens - 160 - 16)
    window = kv_capacity(
        LLAMA_8B, **common, compression=KvCompression(recent_tokens=160, older_kept=Fraction(0))
    )
    assert window.max_tokens is None
