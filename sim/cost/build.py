"""The cost of an engine's steps, from its model, its hardware and its limits."""

from __future__ import annotations

from collections.abc import Sequence

from sim.cost.ageing import AgeingCost
from sim.cost.compiled import CompiledCost
from sim.cost.cuda_graphs import CudaGraphMode, capture_sizes
from sim.cost.host_time import HostTime
from sim.cost.terms import StepTerms
from sim.kv.compression import KvCompression
from sim.model import ModelSpec
from sim.profile import Profile
from workloads.errors import ConfigError


def compile_cost(
    model: ModelSpec,
    profile: Profile,
    *,
    tensor_parallel_size: int = 1,
    weight_dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    max_num_batched_tokens: int,
    max_num_seqs: int,
    async_scheduling: bool = True,
    enforce_eager: bool = False,
    cudagraph_mode: CudaGraphMode = "full_and_piecewise",
    cudagraph_capture_sizes: Sequence[int] | None = None,
    compression: KvCompression | None = None,
) -> CompiledCost:
    """Build the price list of a model on a profile's GPUs under an engine's limits."""
    sizes = capture_sizes(
        max_num_seqs,
        max_num_batched_tokens,
        enforce_eager=enforce_eager,
        cudagraph_mode=cudagraph_mode,
        cudagraph_capture_sizes=cudagraph_capture_sizes,
    )
    ages = compression is not None and compression.recent_tokens is not None
    if ages and model.sliding_window is not None:
        raise ConfigError(
            f"kv_compression: {model.name} has a sliding window of {model.sliding_window} tokens of its own, so "
            "its older tokens are not compressed; leave hot_tokens, keep_ratio and sliding_window out"
        )
    terms = StepTerms.of(model, profile, tensor_parallel_size, weight_dtype, kv_cache_dtype, compression)
    host = HostTime.of(profile.host, model.num_layers, async_scheduling=async_scheduling)
    kind = AgeingCost if ages and terms.compression.sliding_window is None else CompiledCost
    return kind(
        terms,
        host,
        sizes,
        max(max_num_batched_tokens, max_num_seqs),
        mixed_sizes=sizes if cudagraph_mode == "full_and_piecewise" else (),
        weight_dtype=weight_dtype,
        enforce_eager=enforce_eager,
    )
