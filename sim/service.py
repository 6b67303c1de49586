"""What a scenario's names stand for: model, profile, KV capacity, the price of a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sim.batching.decision import EngineLimits
from sim.cost.build import compile_cost
from sim.cost.step_cost import ServiceCost
from sim.engine.frontend import FrontendTimes
from sim.errors import ConfigError
from sim.memory import KvCapacity, kv_capacity
from sim.model import ModelSpec, load_model
from sim.profile import PredictionError, Profile, load_profile
from sim.scenario.sections import Scenario


@dataclass(frozen=True, eq=False)
class Service:
    """What a scenario's names stand for: model, profile, KV capacity, the price of a step and of the way to it."""

    model: ModelSpec
    profile: Profile
    capacity: KvCapacity
    cost: ServiceCost
    limits: EngineLimits
    max_model_len: int
    frontend: FrontendTimes | None = None
    looks_ahead: bool = False
    """Whether the engine plans each step while the one before it runs."""
    errors: tuple[PredictionError, ...] = ()
    """How far off such predictions were where they were measured."""


def build_service(scenario: Scenario, profile: Profile | None = None) -> Service:
    """Load and compile what the scenario names; raises InputError where something does not exist or fit.

    A `profile` given stands in for that of the scenario.
    """
    hardware, engine = scenario.hardware, scenario.engine
    model = load_model(scenario.model)
    if profile is None:
        profile = load_profile(hardware.gpu if hardware.gpu is not None else Path(hardware.profile or ""))
    compression = scenario.kv_compression.build()
    cost = compile_cost(
        model,
        profile,
        tensor_parallel_size=hardware.tensor_parallel_size,
        weight_dtype=hardware.weight_dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        async_scheduling=engine.async_scheduling,
        enforce_eager=engine.enforce_eager,
        cudagraph_mode=engine.cudagraph_mode,
        cudagraph_capture_sizes=engine.cudagraph_capture_sizes,
        compression=compression,
    )
    capacity = kv_capacity(
        model,
        memory_bytes=profile.device.memory_bytes,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        tensor_parallel_size=hardware.tensor_parallel_size,
        weight_dtype=hardware.weight_dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        block_size=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        enforce_eager=engine.enforce_eager,
        cudagraph_mode=engine.cudagraph_mode,
        cudagraph_capture_sizes=engine.cudagraph_capture_sizes,
        num_gpu_blocks_override=engine.num_gpu_blocks_override,
        compression=compression,
    )
    kv_dtype = model.resolve_kv_dtype(engine.kv_cache_dtype, hardware.weight_dtype)
    longest = model.max_position_embeddings
    if capacity.max_tokens is not None:
        longest = min(longest, capacity.max_tokens)
    if engine.max_model_len is not None and engine.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"engine.max_model_len: {engine.max_model_len} exceeds what {model.name} was made for "
            f"({model.max_position_embeddings})"
        )
    max_model_len = engine.max_model_len or longest
    window = scenario.kv_compression.sliding_window
    if window is not None and window >= max_model_len:
        raise ConfigError(
            f"kv_compression.sliding_window: {window} reaches back as far as any sequence ({max_model_len} tokens), "
            "so it frees nothing; give less, or leave it out"
        )
    return Service(
        model,
        profile,
        capacity,
        cost,
        EngineLimits(
            engine.max_num_seqs,
            engine.max_num_batched_tokens,
            engine.block_size,
            kv_tokens=capacity.usable_blocks * engine.block_size,
            l2_tokens=profile.device.l2_bytes
            // model.kv_bytes_per_token_layer(kv_dtype, hardware.tensor_parallel_size),
        ),
        max_model_len,
        FrontendTimes.of(profile.host),
        engine.async_scheduling,
        profile.errors_for(moe=model.moe is not None),
    )
