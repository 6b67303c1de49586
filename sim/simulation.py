"""One run: a scenario goes in, records and a summary come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sim.cost.step_cost import StepCost
from sim.engine.clock import NS_PER_MS, Clock
from sim.engine.cluster import EngineSetup, run_cluster
from sim.engine.paged_steps import PagedSteps
from sim.engine.records import StepColumns
from sim.errors import ConfigError
from sim.kv.allocators.shrinking_paged import ShrinkingPaged
from sim.kv.build import KvSetup
from sim.kv.paging.report import PagingReport, paging_report
from sim.kv.prefetch.session import Session
from sim.kv.tiers.report import tier_report
from sim.kv.tiers.setup import TierSetup
from sim.links.network import Network
from sim.links.report import LinkReport, link_report
from sim.metrics import Requests
from sim.routing.decision import RouterConfig
from sim.scenario.sections import Scenario
from sim.service import Service, build_service
from sim.summary import summarise
from workloads.build import Workload, build_workload
from workloads.trace import Trace


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
        requests, replicas = _records(scenario, service, workload, engine, network, paged, on_share_done)
    else:
        requests, replicas = serve(scenario, service, workload, server, engine, paged)
    summary = summarise(scenario, service, workload, requests, replicas, engine.contracts)
    if server is not None:
        summary["backend"] = server.name
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


def simulate_requests(scenario: Scenario, service: Service, workload: Workload) -> Requests:
    """What became of the requests alone: the same run, without a summary."""
    engine = engine_setup(scenario, service, workload)
    network, paged = _network(scenario, service), paged_steps(scenario, service)
    return _records(scenario, service, workload, engine, network, paged)[0]


def _records(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    engine: EngineSetup,
    network: Network | None,
    paged: list[PagedSteps] | None,
    on_share_done: Callable[[], None] | None = None,
) -> tuple[Requests, tuple[StepColumns, ...]]:
    """Requests and steps of simulated replicas."""
    return run_cluster(
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
        frontend=service.frontend,
        on_share_done=on_share_done,
    )


def serve(
    scenario: Scenario,
    service: Service,
    workload: Workload,
    server: Server,
    engine: EngineSetup | None = None,
    paged: list[PagedSteps] | None = None,
) -> tuple[Requests, tuple[StepColumns, ...]]:
    """The same load on a server, which is one engine that schedules in turn; it may end before its last request."""
    engine = replace(engine or engine_setup(scenario, service, workload), looks_ahead=False)
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
    return EngineSetup(service.limits, policies.batcher, kv, contracts, looks_ahead=service.looks_ahead)


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
