"""What a run came to: the keys of a result file, ours under `sim`."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from sim.engine.records import Status, StepColumns
from sim.metrics import Requests, kv_usage, memory_statistics, padding, serving_metrics, stage_statistics
from sim.qos.contract import Contracts
from sim.routing.least_loaded import LeastLoaded
from sim.scenario.sections import Scenario
from sim.service import Service
from sim.tenant_metrics import tenant_metrics, tier_metrics
from workloads.build import Workload


def summarise(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    requests: Requests,
    replicas: tuple[StepColumns, ...],
    contracts: Contracts | None = None,
) -> dict[str, Any]:
    """A result file of `vllm bench serve`, with what follows from scenario and records under `sim`."""
    config = scenario.workload
    rate, burstiness = config.request_rate, config.burstiness
    metrics = serving_metrics(requests, replicas, scenario.slo.limits_ms)
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "sim",
        "label": None,
        "model_id": service.model.name,
        "tokenizer_id": None,
        "num_prompts": len(requests),
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "burstiness": "inf" if burstiness == math.inf else burstiness,
        "max_concurrency": workload.max_concurrency,
        **metrics,
        "sim": {
            **_own_summary(scenario, service, workload, requests, replicas),
            "intervals": _intervals(service, metrics),
            **_tenants(scenario, service, workload, requests, replicas, contracts),
        },
    }


def _intervals(service: Service, metrics: Mapping[str, float | None]) -> dict[str, list[float]]:
    """Where measurements of metrics lie with a probability of 90%, by the errors on curves that no fit had seen."""
    known = {error.metric: error for error in service.errors}
    return {
        name: list(known[name].interval(value))
        for name, value in metrics.items()
        if name in known and value is not None
    }


def _own_summary(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    requests: Requests,
    replicas: tuple[StepColumns, ...],
) -> dict[str, Any]:
    usage_mean, usage_peak = kv_usage(replicas, service.capacity.usable_blocks, requests.duration_ns)
    busy_ns = sum(int(log.step_ns.sum()) for log in replicas)
    available_ns = requests.duration_ns * len(replicas)
    rejected = _rejections(requests)
    queries, hits = (sum(getattr(log, f"prefix_{name}") for log in replicas) for name in ("queries", "hits"))
    return {
        "servetwin": version("servetwin"),
        "seed": scenario.seed,
        "profile": {
            "name": service.profile.name,
            "engine": service.profile.engine,
            "hash": service.profile.content_hash,
        },
        "replicas": len(replicas),
        "gpus": len(replicas) * scenario.hardware.tensor_parallel_size,
        "num_gpu_blocks": service.capacity.num_gpu_blocks,
        "max_model_len": service.max_model_len,
        "kv_compression": _compression(scenario, service),
        "steps": sum(int(log.step_ns.size) for log in replicas),
        "busy_fraction": busy_ns / available_ns if available_ns else 0.0,
        "preemptions": int(requests.columns["preemptions"].sum()),
        "prefix_hit_rate": hits / queries if queries else None,
        "kv_usage_mean": usage_mean,
        "kv_usage_peak": usage_peak,
        **memory_statistics(replicas, service.capacity.usable_blocks, service.limits.block_size),
        "padding": padding(replicas),
        "stages_ms": stage_statistics(requests),
        "rejected": rejected,
        "extrapolated": dict(service.cost.extrapolated),
        "warnings": [
            *workload.trace.warnings,
            *service.cost.notes,
            *_compression_notes(scenario),
            *_advice(rejected, service, scenario),
            *_load_notes(scenario, workload),
        ],
    }


def _tenants(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    requests: Requests,
    replicas: tuple[StepColumns, ...],
    contracts: Contracts | None,
) -> dict[str, Any]:
    """Metrics by tenant where there are several, and of tiers where there are any."""
    trace = workload.trace
    found: dict[str, Any] = {}
    if contracts is not None or len(trace.tenant_names) > 1:
        found["tenants"] = tenant_metrics(
            requests,
            trace,
            scenario.slo.limits_ms,
            contracts,
            prefix_caching=scenario.engine.enable_prefix_caching,
        )
    if contracts is not None:
        blocks, seats = service.capacity.usable_blocks, service.limits.max_num_seqs
        found["tiers"] = tier_metrics(contracts, replicas, blocks, seats, requests.duration_ns)
    return found


def _compression(scenario: Scenario, service: Service) -> dict[str, Any] | None:
    """What is compressed, and what its user says of the quality; None where nothing is."""
    built = scenario.kv_compression.build()
    if built is None:
        return None
    layers = service.model.num_layers
    return {
        "owning_layers": built.num_owners(layers),
        "recent_token_share": float(built.stored_share(layers)),
        "older_token_share": float(
            built.stored_share(layers) * built.older_kept * built.older_bytes(service.model.head_dim)
        ),
        "block_bytes": service.capacity.block_bytes,
        "assumptions": dict(scenario.kv_compression.quality),
    }


def _compression_notes(scenario: Scenario) -> list[str]:
    notes = []
    quality = scenario.kv_compression.quality
    if quality:
        assumed = ", ".join(f"{name} {value:g}" for name, value in quality.items())
        notes.append(f"kv_compression.quality, assumed: {assumed}")
    if scenario.kv_compression.build() is not None and scenario.engine.num_gpu_blocks_override is not None:
        notes.append(
            "engine.num_gpu_blocks_override says how many blocks there are: what kv_compression saves of the memory of "
            "a block makes no more of them"
        )
    return notes


def _rejections(requests: Requests) -> dict[str, int]:
    counts = Counter(requests.columns["status"].tolist())
    return {status.name.lower(): counts[status] for status in Status if status and counts[status]}


def _advice(rejected: dict[str, int], service: Service, scenario: Scenario) -> list[str]:
    """Name what refused requests, and what would let them in."""
    allocator = scenario.policies.allocator.name
    remedy = {
        "exceeds_max_model_len": f"are longer than max_model_len ({service.max_model_len})",
        "exceeds_kv_cache": (
            f"need more KV than there is ({service.capacity.usable_blocks} blocks)"
            + (", or than their tier of qos may hold" if scenario.qos is not None else "")
            + (f", or than {allocator} sets aside for one sequence" if allocator != "paged" else "")
        ),
        "exceeds_connections": "came while as many of their tier were in flight as qos lets it have",
        "exceeds_max_num_batched_tokens": (
            f"are longer than max_num_batched_tokens ({service.limits.max_num_batched_tokens}), and this batcher "
            "never splits a prompt"
        ),
    }
    return [f"{count} requests were refused: they {remedy[reason]}" for reason, count in rejected.items()]


def _load_notes(scenario: Scenario, workload: Workload) -> list[str]:
    notes = []
    if scenario.engine.enable_prefix_caching and workload.trace.hashes is None:
        notes.append("prefix caching finds nothing: the workload does not say which prompts share a prefix")
    if scenario.policies.router.name == "session_affinity" and not (workload.trace.session >= 0).any():
        notes.append(
            "policies.router: session_affinity acts as least_loaded: the workload does not say which requests "
            "belong to one session"
        )
    delayed = scenario.cluster.signal_delay_ms > 0
    if scenario.cluster.replicas == 1 and (scenario.policies.router != LeastLoaded() or delayed):
        notes.append("policies.router and cluster.signal_delay_ms act among replicas, and there is one")
    return notes
