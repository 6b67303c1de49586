"""One run: a scenario goes in, records and a summary come out."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sim.batching.decision import EngineLimits
from sim.cost.build import compile_cost
from sim.cost.step_cost import ServiceCost, StepCost
from sim.engine.clock import NS_PER_MS, Clock
from sim.engine.cluster import EngineSetup, run_cluster
from sim.engine.paged_steps import PagedSteps
from sim.engine.records import Status, StepColumns
from sim.errors import ConfigError
from sim.kv.allocators.shrinking_paged import ShrinkingPaged
from sim.kv.build import KvSetup
from sim.kv.paging.report import PagingReport, paging_report
from sim.kv.prefetch.session import Session
from sim.kv.tiers.report import tier_report
from sim.kv.tiers.setup import TierSetup
from sim.links.network import Network
from sim.links.report import LinkReport, link_report
from sim.memory import KvCapacity, kv_capacity
from sim.metrics import Requests, kv_usage, memory_statistics, padding, serving_metrics, stage_statistics
from sim.model import ModelSpec, load_model
from sim.profile import Profile, load_profile
from sim.routing.decision import RouterConfig
from sim.scenario.sections import Scenario
from sim.tenant_metrics import tenant_metrics, tier_metrics
from workloads.build import Workload, build_workload
from workloads.trace import Trace


@dataclass(frozen=True, eq=False)
class Service:
    """What a scenario's names stand for: model, profile, KV capacity and the price of a step."""

    model: ModelSpec
    profile: Profile
    capacity: KvCapacity
    cost: ServiceCost
    limits: EngineLimits
    max_model_len: int


@dataclass(frozen=True, eq=False)
class Result:
    """A run. `summary` has the keys of a result file of `vllm bench serve`, ours under `sim`."""

    scenario: Scenario
    service: Service
    requests: Requests
    replicas: tuple[StepColumns, ...]
    summary: dict[str, Any]
    links: LinkReport | None = None
    """What moved beside the steps; None where nothing ever does."""
    paging: PagingReport | None = None
    """What became of the pages of KV in host memory; None where it is all in HBM."""


class Server(Protocol):
    """Who serves a load in place of simulated replicas: an engine on a device."""

    name: str
    """Of the backend, for summaries."""

    def serve(
        self,
        trace: Trace,
        engine: EngineSetup,
        cost: StepCost,
        *,
        router: RouterConfig,
        router_seed: np.random.SeedSequence,
        signal_delay_ns: int,
        max_concurrency: int | None,
        paged: PagedSteps | None,
    ) -> tuple[Requests, StepColumns]:
        """Replay the load on one engine."""


def build_service(scenario: Scenario) -> Service:
    """Load and compile what the scenario names; raises InputError where something does not exist or fit."""
    hardware, engine = scenario.hardware, scenario.engine
    model = load_model(scenario.model)
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
        engine.max_model_len or longest,
    )


def build_load(scenario: Scenario) -> Workload:
    """Read or draw the scenario's requests; they depend on `workload` and `seed` alone."""
    return build_workload(scenario.workload, _streams(scenario.seed)[0])


def simulate(
    scenario: Scenario,
    service: Service | None = None,
    workload: Workload | None = None,
    *,
    on_share_done: Callable[[], None] | None = None,
    server: Server | None = None,
) -> Result:
    """Run the scenario to the end of its last request.

    Parts built before, for the same scenario, may be given; `on_share_done` is called after each 1% of the requests.
    With a `server` the same policies and the same requests run there, in its time, and the result is what came of it.
    """
    service = service or build_service(scenario)
    workload = workload or build_load(scenario)
    network = _network(scenario, service) if server is None else None
    paged = paged_steps(scenario, service)
    engine = engine_setup(scenario, service, workload)
    if server is None:
        requests, replicas = run_cluster(
            workload.trace,
            service.cost,
            engine,
            replicas=scenario.cluster.replicas,
            router=scenario.policies.router,
            router_seed=_streams(scenario.seed)[1],
            signal_delay_ns=round(scenario.cluster.signal_delay_ms * NS_PER_MS),
            max_concurrency=workload.max_concurrency,
            fast_forward=scenario.simulation.fast_forward,
            network=network,
            paged=paged,
            on_share_done=on_share_done,
        )
    else:
        requests, replicas = serve(scenario, service, workload, server, engine, paged)
    summary = _summary(scenario, service, workload, requests, replicas)
    if server is not None:
        summary["backend"] = server.name
    summary["sim"] |= _tenants(scenario, service, workload, requests, replicas)
    if engine.kv.tiers is not None:
        accounts = [log.tiers for log in replicas if log.tiers is not None]
        gpus = scenario.hardware.tensor_parallel_size
        summary["sim"]["kv_tiers"] = tier_report(
            engine.kv.tiers, accounts, gpus=gpus, duration_ns=requests.duration_ns
        )
    links = None if network is None else link_report(network, replicas)
    if links is not None:
        summary["sim"] |= links.summary
    paging = None
    if paged is not None:
        paging = paging_report(
            scenario.policies.prefetch.name, [one.paging for one in paged], [one.facts for one in paged]
        )
        summary["sim"]["prefetch"] = paging.summary
    return Result(scenario, service, requests, replicas, summary, links, paging)


def serve(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    server: Server,
    engine: EngineSetup | None = None,
    paged: list[PagedSteps] | None = None,
) -> tuple[Requests, tuple[StepColumns, ...]]:
    """The same load on a server, which is one engine; it may end before its last request."""
    engine = engine or engine_setup(scenario, service, workload)
    paged = paged or paged_steps(scenario, service)
    if scenario.cluster.replicas != 1:
        raise ConfigError(
            f"cluster.replicas: {scenario.cluster.replicas}, and a device runs one engine; set cluster.replicas: 1"
        )
    requests, log = server.serve(
        workload.trace,
        engine,
        service.cost,
        router=scenario.policies.router,
        router_seed=_streams(scenario.seed)[1],
        signal_delay_ns=round(scenario.cluster.signal_delay_ms * NS_PER_MS),
        max_concurrency=workload.max_concurrency,
        paged=None if paged is None else paged[0],
    )
    return requests, (log,)


def _network(scenario: Scenario, service: Service) -> Network | None:
    """Make the links of the replicas, where anything ever moves on them."""
    links = scenario.links
    if not links.background and not scenario.routes:
        return None
    return Network(
        Clock(),
        service.profile.device,
        scenario.cluster.replicas,
        measured=links.bytes_per_s,
        latency_ns=round(links.latency_us * 1000),
        background=[flow.flow for flow in links.background],
    )


def paged_steps(scenario: Scenario, service: Service) -> list[PagedSteps] | None:
    """Make the paging of each replica's KV, where it is in host memory."""
    prefetch = scenario.policies.prefetch
    if isinstance(prefetch, Session):  # which brings back blocks of the prefix cache
        return None
    pagings = scenario.kv_access.build(
        prefetch,
        service.model,
        service.capacity,
        _streams(scenario.seed)[2],
        scenario.cluster.replicas,
    )
    return None if pagings is None else [PagedSteps(paging) for paging in pagings]


def engine_setup(scenario: Scenario, service: Service, workload: Workload) -> EngineSetup:
    """What each engine of the scenario is made of."""
    engine, policies = scenario.engine, scenario.policies
    kv = KvSetup(
        usable_blocks=service.capacity.usable_blocks,
        block_size=engine.block_size,
        max_model_len=service.max_model_len,
        block_bytes=service.capacity.block_bytes,
        allocator=policies.allocator,
        prefix_caching=engine.enable_prefix_caching,
        eviction=None if policies.eviction.name == "lru" else policies.eviction,
        warm_cache=engine.cache_at_start == "warm",
        tiers=_tiers(scenario, service),
        prefetch=policies.prefetch if isinstance(policies.prefetch, Session) else None,
    )
    if service.capacity.footprint is not None:
        kv = replace(kv, allocator=ShrinkingPaged(service.capacity.footprint))
    contracts = None if scenario.qos is None else scenario.qos.build(workload.trace)
    return EngineSetup(service.limits, policies.batcher, kv, contracts)


def _tiers(scenario: Scenario, service: Service) -> TierSetup | None:
    """Make the tiers below HBM, where there are any."""
    section = scenario.kv_tiers
    if not section.host_gib:
        return None
    return section.build(
        service.cost,
        service.limits,
        section.rates(scenario.links, service.profile.device),
        block_bytes=service.capacity.block_bytes,
        gpus=scenario.hardware.tensor_parallel_size,
    )


def _streams(seed: int) -> list[np.random.SeedSequence]:
    """One independent stream per consumer, in a fixed order: workload, router, KV accesses."""
    return np.random.SeedSequence(seed).spawn(3)


def _summary(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    requests: Requests,
    replicas: tuple[StepColumns, ...],
) -> dict[str, Any]:
    config = scenario.workload
    rate, burstiness = config.request_rate, config.burstiness
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
        **serving_metrics(requests, replicas, scenario.slo.limits_ms),
        "sim": _own_summary(scenario, service, workload, requests, replicas),
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
            *_quality_notes(scenario),
            *_advice(rejected, service, tiers=scenario.qos is not None),
            *_cache_notes(scenario, workload),
        ],
    }


def _tenants(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    requests: Requests,
    replicas: tuple[StepColumns, ...],
) -> dict[str, Any]:
    """Metrics by tenant where there are several, and of tiers where there are any."""
    trace = workload.trace
    contracts = None if scenario.qos is None else scenario.qos.build(trace)
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


def _quality_notes(scenario: Scenario) -> list[str]:
    quality = scenario.kv_compression.quality
    if not quality:
        return []
    return [
        f"kv_compression.quality, assumed: {', '.join(f'{name} {value:g}' for name, value in quality.items())}"
    ]


def _rejections(requests: Requests) -> dict[str, int]:
    counts = Counter(requests.columns["status"].tolist())
    return {status.name.lower(): counts[status] for status in Status if status and counts[status]}


def _advice(rejected: dict[str, int], service: Service, *, tiers: bool) -> list[str]:
    """Name what refused requests, and what would let them in."""
    remedy = {
        "exceeds_max_model_len": f"are longer than max_model_len ({service.max_model_len})",
        "exceeds_kv_cache": (
            f"need more KV than there is ({service.capacity.usable_blocks} blocks)"
            + (", or than their tier of qos may hold" if tiers else "")
        ),
        "exceeds_connections": "came while as many of their tier were in flight as qos lets it have",
        "exceeds_max_num_batched_tokens": (
            f"are longer than max_num_batched_tokens ({service.limits.max_num_batched_tokens}), and this batcher "
            "never splits a prompt"
        ),
    }
    return [f"{count} requests were refused: they {remedy[reason]}" for reason, count in rejected.items()]


def _cache_notes(scenario: Scenario, workload: Workload) -> list[str]:
    notes = []
    if scenario.engine.enable_prefix_caching and workload.trace.hashes is None:
        notes.append("prefix caching finds nothing: the workload does not say which prompts share a prefix")
    if scenario.policies.router.name == "session_affinity" and not (workload.trace.session >= 0).any():
        notes.append(
            "policies.router: session_affinity acts as least_loaded: the workload does not say which requests "
            "belong to one session"
        )
    return notes
