"""The miniature engine as a source of attention, for a scenario: its load, its policies, its KV blocks, its model."""

from __future__ import annotations

import numpy as np

from calibration.confirmation.cost import free
from calibration.confirmation.service import device_profile, device_service, model_of
from hwbackend.attention.engine_source import EngineAttention, EngineLoad
from hwbackend.device import Device
from hwbackend.engine.server import check_scenario
from hwbackend.engine.transformer import Transformer
from hwbackend.engine.weights import check_runs, random_weights
from sim.errors import ConfigError
from sim.model import ModelSpec
from sim.scenario.sections import Scenario
from sim.simulation import build_load, engine_setup
from workloads.trace import Trace

_FLOAT_BYTES = 4  # weights are drawn in host memory, in float32


def engine_source(
    scenario: Scenario, device: Device, steps: int, request: int | None, weights_seed: int
) -> EngineAttention:
    """Make ready what the scenario names; ConfigError names what cannot be watched."""
    check_scenario(scenario)
    if scenario.kv_access.pattern is not None:
        raise ConfigError(
            "kv_access.pattern: decode steps read what it names, and a recording is of what they would read; "
            "leave it out"
        )
    if scenario.kv_tiers.host_gib:
        raise ConfigError("kv_tiers.host_gib: changes nothing that a sequence attends to; leave it out")
    if scenario.engine.num_gpu_blocks_override is None:
        raise ConfigError("engine.num_gpu_blocks_override: missing; say how many KV blocks the engine gets")
    model = model_of(scenario)
    check_runs(model)
    _check_size(model, device)
    service = device_service(scenario, device, device_profile(device), free(), model)
    workload = build_load(scenario)
    index = _first(workload.trace, steps) if request is None else request
    load = EngineLoad(
        workload.trace, engine_setup(scenario, service, workload), service.cost, workload.max_concurrency
    )
    transformer = Transformer(model, random_weights(model, weights_seed), device, service.max_model_len)
    return EngineAttention(device, transformer, load, index)


def _check_size(model: ModelSpec, device: Device) -> None:
    needed, free_bytes = _FLOAT_BYTES * model.params_total, device.memory().free_bytes
    if needed > free_bytes:
        raise ConfigError(
            f"model: {model.name} takes {needed / 2**30:.1f} GiB of weights in float32, and "
            f"{free_bytes / 2**30:.1f} GiB are free; take a smaller model"
        )


def _first(trace: Trace, steps: int) -> int:
    """The first request with so many decode steps: its first token comes with the prompt, the others with a step."""
    long_enough = np.flatnonzero(trace.output_tokens > steps)
    if not long_enough.size:
        most = int(trace.output_tokens.max(initial=1)) - 1
        raise ConfigError(f"--steps {steps}: no request has more than {most} decode steps; ask for no more")
    return int(long_enough[0])
