"""What both sides of a confirmation stand on: the device as a profile, the model, the same KV memory and limits."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from time import perf_counter
from typing import Final

import numpy as np

from hwbackend.device import Device
from hwbackend.engine.server import BACKEND
from hwbackend.ops import VALUE_BYTES
from sim.batching.decision import EngineLimits
from sim.cost.build import compile_cost
from sim.cost.step_cost import ServiceCost
from sim.curves.elementwise import ElementwiseCurve
from sim.errors import ConfigError
from sim.memory import KvCapacity, kv_capacity
from sim.model import ModelSpec, load_model
from sim.profile import Device as ProfileDevice
from sim.profile import Profile
from sim.scenario.sections import Scenario
from sim.service import Service

_COPY_BYTES: Final = 64 * 2**20  # larger than most caches
_SMALL: Final = 1024  # values of a call that is all launch
_TIMES: Final = 7


def device_profile(device: Device) -> Profile:
    """The device as it shows itself: memory, cache, copy bandwidths, time of a call. It has no curves of kernels.

    Bandwidths are medians of copies of 64 MiB, each way: within device memory (counted read and written), and from
    pinned host memory to the device.
    """
    identity = device.identity
    within, loaded = _copy_rates(device)
    launch_s = _call_s(device)
    return Profile(
        schema=1,
        name=f"{_word(identity.name)}_{BACKEND}",
        engine=f"{BACKEND} {version('servetwin')}",
        created=datetime.now(UTC).date().isoformat(),
        device=ProfileDevice(
            memory_bytes=identity.memory.total_bytes,
            memory_source=identity.memory.source,
            hbm_bytes_per_s=within,
            flops_per_s={},
            sm_count=identity.compute_units,
            l2_bytes=identity.cache_bytes,
            pcie_bytes_per_s=loaded,
            nvlink_bytes_per_s=None,
            gpus_per_node=1,
            compute_capability=identity.compute_capability,
            source=f"measured on {identity.fingerprint}",
        ),
        gemm={},
        prefill_attention={},
        decode_attention={},
        elementwise=ElementwiseCurve(
            source="a small addition, and copies of 64 MiB", launch_s=launch_s, bytes_per_s=within
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


def _copy_rates(device: Device) -> tuple[float, float]:
    source, target = (device.empty(_COPY_BYTES, "uint8") for _ in range(2))
    source.fill(1)
    host = device.host_buffer(_COPY_BYTES, pinned=True)
    host[:] = 1
    within = _median_s(device, lambda: device.copy(target, source))
    loaded = _median_s(device, lambda: device.copy(target, host))
    return 2 * _COPY_BYTES / within, _COPY_BYTES / loaded


def _call_s(device: Device) -> float:
    x, y = (device.ops.to_values(device.to_device(np.zeros((1, _SMALL), np.float32))) for _ in range(2))
    many = 100

    def calls() -> None:
        for _ in range(many):
            device.ops.add(x, y)

    return _median_s(device, calls) / many


def _median_s(device: Device, call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TIMES + 1):
        device.main.synchronize()
        start = perf_counter()
        call()
        device.main.synchronize()
        seconds.append(perf_counter() - start)
    return statistics.median(seconds[1:])


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "device"
