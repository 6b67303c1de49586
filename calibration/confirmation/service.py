"""What both sides of a confirmation stand on: the device as a profile, the model, the same KV memory and limits."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from calibration.measurements import measured_device
from hwbackend.device import Device
from hwbackend.engine.server import BACKEND
from hwbackend.harness import Rules
from hwbackend.microbench.all import BENCHMARKS
from hwbackend.microbench.bench import Axes, Result, run_point
from hwbackend.ops import VALUE_BYTES
from sim.batching.decision import EngineLimits
from sim.cost.build import compile_cost
from sim.cost.step_cost import ServiceCost
from sim.curves.elementwise import ElementwiseCurve
from sim.errors import ConfigError
from sim.memory import KvCapacity, kv_capacity
from sim.model import ModelSpec, load_model
from sim.profile import Profile
from sim.scenario.sections import Scenario
from sim.service import Service

_COPY_BYTES: Final = 64 * 2**20  # larger than most caches
_RULES: Final = Rules(budget_s=0.2)


def device_profile(device: Device) -> Profile:
    """The device as it shows itself: memory, cache, copy bandwidths, time of a call. It has no curves of kernels.

    Three microbenchmarks: copies of 64 MiB within device memory (counted read and written) and from pinned host memory
    to the device, and the smallest call.
    """
    identity = device.identity
    copies = [
        _point(device, "device_memory", {"op": "copy", "num_bytes": _COPY_BYTES}),
        _point(device, "transfer", {"direction": "load", "num_bytes": _COPY_BYTES, "memory": "pinned"}),
    ]
    call = _point(device, "launch", {"op": "call", "calls": 1}).measurement
    assert call is not None
    measured = measured_device(copies, identity)
    return Profile(
        schema=1,
        name=f"{_word(identity.name)}_{BACKEND}",
        engine=f"{BACKEND} {version('servetwin')}",
        created=datetime.now(UTC).date().isoformat(),
        device=measured,
        gemm={},
        prefill_attention={},
        decode_attention={},
        elementwise=ElementwiseCurve(
            source="the smallest call, and copies of 64 MiB",
            launch_s=call.summary.median_s,
            bytes_per_s=measured.hbm_bytes_per_s,
        ),
    )


def device_service(
    scenario: Scenario, device: Device, profile: Profile, cost: ServiceCost, model: ModelSpec
) -> Service:
    """The service of a scenario on a device that runs the miniature engine, at given prices."""
    engine = scenario.engine
    capacity = device_capacity(scenario, model, device, profile)
    token_bytes = capacity.block_bytes // engine.block_size
    longest = min(model.max_position_embeddings, capacity.usable_blocks * engine.block_size)
    if engine.max_model_len is not None and engine.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"engine.max_model_len: {engine.max_model_len} exceeds what {model.name} was made for "
            f"({model.max_position_embeddings})"
        )
    limits = EngineLimits(
        engine.max_num_seqs,
        engine.max_num_batched_tokens,
        engine.block_size,
        kv_tokens=capacity.usable_blocks * engine.block_size,
        l2_tokens=profile.device.l2_bytes * model.num_layers // token_bytes,
    )
    return Service(model, profile, capacity, cost, limits, engine.max_model_len or longest)


def listed_cost(scenario: Scenario, model: ModelSpec, profile: Profile, device: Device) -> ServiceCost:
    """Prices of a profile for what the engine runs: one step after the other, in the device's own dtype."""
    engine, dtype = scenario.engine, "float32" if device.ops.dtype == "float32" else "bfloat16"
    return compile_cost(
        model,
        profile,
        weight_dtype=dtype,
        kv_cache_dtype=dtype,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        async_scheduling=False,
        enforce_eager=engine.enforce_eager or device.kind == "cpu",
        cudagraph_capture_sizes=None if device.kind == "cpu" else engine.cudagraph_capture_sizes,
    )


def model_of(scenario: Scenario) -> ModelSpec:
    return load_model(scenario.model)


def device_capacity(scenario: Scenario, model: ModelSpec, device: Device, profile: Profile) -> KvCapacity:
    """KV blocks, with the bytes that they take on this device."""
    engine = scenario.engine
    if engine.num_gpu_blocks_override is None:
        raise ConfigError(
            "engine.num_gpu_blocks_override: missing; a confirmation needs the same KV memory on both sides, "
            "so say how many blocks"
        )
    capacity = kv_capacity(
        model,
        memory_bytes=profile.device.memory_bytes,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        block_size=engine.block_size,
        num_gpu_blocks_override=engine.num_gpu_blocks_override,
    )
    value = VALUE_BYTES[device.ops.dtype]
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * value
    return replace(capacity, block_bytes=engine.block_size * token_bytes)


def _point(device: Device, name: str, axes: Axes) -> Result:
    result = run_point(device, BENCHMARKS[name], axes, _RULES)
    if result.measurement is None:
        raise ConfigError(f"{name} does not run here: {result.skipped}")
    return result


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "device"
