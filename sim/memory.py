"""KV capacity: what an engine leaves for KV blocks after weights, activations, CUDA graphs and its context.

    budget = memory as the driver reports it x gpu_memory_utilization
    blocks = floor((budget - weights - activations - graphs - context) / bytes of a block)

The activation peak is that of the engine's profile run (vLLM V1, `GPUModelRunner.profile_run`): one forward
pass of `max_num_batched_tokens`, then sampling for `max_num_seqs` sequences. Three constants are measured,
and the same for every model and GPU; they reproduce the block counts of five logged engines within 1.6%.
Engines before 0.19 do not subtract graphs, which is most of that error (tests/sim/test_memory.py).

A compressed cache has smaller blocks; where older tokens take less than recent ones, blocks are those of recent ones.

The memory that counts is CUDA's own total (`cudaMemGetInfo`), 0.6-1.5% below what nvidia-smi shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sim.cost.cuda_graphs import CudaGraphMode, capture_sizes
from sim.errors import CapacityError
from sim.kv.compression import KvCompression
from sim.kv.footprint import Footprint
from sim.model import WEIGHT_BYTES, ModelSpec

# CUDA context growth, cuBLAS workspaces, compiled modules, allocator slack: what remains of the H100
# Llama-2-7B log (vLLM 0.15.1, no graphs counted there) after weights and the activation peak below.
CONTEXT_BYTES: Final = 256 * 2**20
# NCCL and custom all-reduce buffers of a process that is not alone: 471, 481 and 483 MB remain in the logs of
# CodeLlama-34B TP2, Llama-2-70B TP4 and Mixtral-8x7B TP2 on H100.
COMMUNICATOR_BYTES: Final = 456 * 2**20
# One layer in one captured graph: what remains of the RTX 4090 Llama-3.1-8B log (vLLM 0.19; 51 piecewise and
# 35 full graphs).
GRAPH_LAYER_BYTES: Final = 145 * 2**10
# Sampling, per logit: 2 (logits) + 4 (their fp32 copy) + 4 (probabilities) + 4 (exponential noise) ...
LOGIT_BYTES: Final = 14
# ... and the buffers of the top-k/top-p kernel ("around 80 MiB": vLLM pull request 33538).
SAMPLER_BYTES: Final = 80 * 2**20


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """Memory of one GPU [bytes], part by part, and what it holds of KV."""

    num_gpu_blocks: int
    block_size: int
    block_bytes: int
    memory_bytes: int
    budget_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int
    context_bytes: int
    overridden: bool = False
    footprint: Footprint | None = None
    """What a sequence takes of them, where its older tokens shrink."""

    @property
    def kv_bytes(self) -> int:
        return self.num_gpu_blocks * self.block_bytes

    @property
    def usable_blocks(self) -> int:
        """The engine keeps one block, its null block, for itself; `num_gpu_blocks` counts it."""
        return self.num_gpu_blocks - 1

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that fits when it is alone; None where one may grow without end."""
        if self.footprint is None:
            return self.usable_blocks * self.block_size
        return self.footprint.longest(self.usable_blocks * self.footprint.recent_granules)


def kv_capacity(
    model: ModelSpec,
    *,
    memory_bytes: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    weight_dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    block_size: int = 16,
    gpu_memory_utilization: float = 0.9,
    enforce_eager: bool = False,
    cudagraph_mode: CudaGraphMode = "full_and_piecewise",
    cudagraph_capture_sizes: Sequence[int] | None = None,
    num_gpu_blocks_override: int | None = None,
    compression: KvCompression | None = None,
) -> KvCapacity:
    """Work out the KV blocks of one GPU; `num_gpu_blocks_override` wins over the arithmetic."""
    sizes = capture_sizes(
        max_num_seqs,
        max_num_batched_tokens,
        enforce_eager=enforce_eager,
        cudagraph_mode=cudagraph_mode,
        cudagraph_capture_sizes=cudagraph_capture_sizes,
    )
    piecewise = len(sizes) if cudagraph_mode == "full_and_piecewise" else 0
    tp = tensor_parallel_size
    budget = int(memory_bytes * gpu_memory_utilization)
    weights = model.weight_bytes(weight_dtype, tp)
    value_bytes = int(WEIGHT_BYTES[model.plain_dtype(weight_dtype)])
    activations = activation_bytes(model, max_num_batched_tokens, max_num_seqs, tp, value_bytes=value_bytes)
    graphs = GRAPH_LAYER_BYTES * model.num_layers * (piecewise + sum(size <= max_num_seqs for size in sizes))
    context = CONTEXT_BYTES + (COMMUNICATOR_BYTES if tp > 1 else 0)
    kv_dtype = model.resolve_kv_dtype(kv_cache_dtype, weight_dtype)
    block_bytes = model.kv_group_layers * block_size * model.kv_bytes_per_token_layer(kv_dtype, tp)
    if compression is not None:
        block_bytes = math.ceil(block_bytes * compression.stored_share(model.num_layers))
    blocks = num_gpu_blocks_override
    if blocks is None:
        taken = weights + activations + graphs + context
        blocks = max(0, budget - taken) // block_bytes
        if blocks < 2:
            raise CapacityError(_too_large(model, taken + 2 * block_bytes, budget, tp))
    return KvCapacity(
        num_gpu_blocks=blocks,
        block_size=block_size,
        block_bytes=block_bytes,
        memory_bytes=memory_bytes,
        budget_bytes=budget,
        weight_bytes=weights,
        activation_bytes=activations,
        graph_bytes=graphs,
        context_bytes=context,
        overridden=num_gpu_blocks_override is not None,
        footprint=compression.footprint(block_size, model.head_dim) if compression else None,
    )


def activation_bytes(
    model: ModelSpec,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    *,
    value_bytes: int = 2,
) -> int:
    """Peak of the profile run: the widest layer of the forward pass, or sampling, whichever is larger."""
    tokens, hidden, tp = max_num_batched_tokens, model.hidden_size, tensor_parallel_size
    stream = 2 * hidden  # hidden states and residual
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim // tp
    widest = max(qkv, 3 * model.intermediate_size // tp)  # gate, up and their product
    if model.moe is not None:
        inter = model.moe.expert_intermediate_size // tp
        # Fused experts (vLLM `fused_moe`): gate-up and expert outputs share a buffer, activation has its own.
        widest = max(qkv, model.moe.top_k * (max(2 * inter, hidden) + inter) + hidden)
    forward = value_bytes * tokens * (stream + widest)
    rows = min(max_num_seqs, tokens)
    sampling = value_bytes * tokens * hidden + LOGIT_BYTES * rows * model.vocab_size + SAMPLER_BYTES
    return max(forward, sampling)


def _too_large(model: ModelSpec, needed: int, budget: int, tp: int) -> str:
    return (
        f"hardware: {model.name} needs {needed / 1e9:.1f} GB on each GPU (tensor_parallel_size {tp}) before "
        f"any useful KV, of {budget / 1e9:.1f} GB; raise hardware.tensor_parallel_size, set "
        f"hardware.weight_dtype: fp8, or raise engine.gpu_memory_utilization"
    )
