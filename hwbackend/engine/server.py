"""A device as the server of a scenario: what `sim.simulation.simulate` runs in place of simulated replicas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from hwbackend.device import Device
from hwbackend.engine.device_executor import DeviceExecutor, EngineParts
from hwbackend.engine.host_pages import HostPages
from hwbackend.engine.kv_pool import KvBlocks
from hwbackend.engine.movement import Movement
from hwbackend.engine.page_link import PageLink
from hwbackend.engine.paged_executor import PagedExecutor
from hwbackend.engine.realtime import Served, serve
from hwbackend.engine.tokens import TokenStore
from hwbackend.engine.transformer import Transformer
from hwbackend.engine.wall_clock import MonotonicClock
from hwbackend.engine.weights import check_runs, random_weights
from sim.cost import StepCost
from sim.cost.cuda_graphs import capture_sizes
from sim.engine.clock import NS_PER_S
from sim.engine.cluster import EngineSetup, prefixes
from sim.engine.core import EngineCore
from sim.engine.paged_steps import PagedSteps
from sim.engine.records import StepColumns
from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.metrics import Requests
from sim.model import ModelSpec
from sim.routing.decision import RouterConfig
from sim.scenario.sections import Scenario
from workloads.errors import InputError
from workloads.trace import BlockHashes, Trace

BACKEND: Final = "servetwin-engine"
_WEIGHTS_SEED: Final = 0
_WARM_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class PagedLink:
    """How pages come from host memory: at a rate (a CPU has no such link of its own), or as fast as the device can."""

    bytes_per_s: float | None = None
    latency_s: float = 0.0


class EngineServer:
    """The miniature engine. Weights and kernels are made once; each load has KV memory and a clock of its own.

    `last` is what the last load left: every step, and what a replay needs.
    """

    name = BACKEND

    def __init__(
        self,
        device: Device,
        model: ModelSpec,
        max_model_len: int,
        *,
        graphs: tuple[int, ...] = (),
        link: PagedLink | None = None,
        transformer: Transformer | None = None,
    ) -> None:
        check_runs(model)
        self.device = device
        self.model = model
        self.link = link or PagedLink()
        self.last: Served | None = None
        self.limit_s: float | None = None
        """Loads end after so long, whoever is still in flight; None: with their last request."""
        self._max_model_len = max_model_len
        self._graphs = graphs if device.has_graphs else ()
        self.transformer = transformer or Transformer(
            model, random_weights(model, _WEIGHTS_SEED), device, max_model_len
        )
        self._open: list[PageLink] = []

    @classmethod
    def of(
        cls,
        device: Device,
        model: ModelSpec,
        scenario: Scenario,
        max_model_len: int,
        transformer: Transformer | None = None,
    ) -> EngineServer:
        """One for a scenario; ConfigError names what a scenario has that no device can.

        A transformer of the same model and length that another server has may be shared.
        """
        check_scenario(scenario)
        engine = scenario.engine
        sizes = capture_sizes(
            engine.max_num_seqs,
            engine.max_num_batched_tokens,
            enforce_eager=engine.enforce_eager,
            cudagraph_capture_sizes=engine.cudagraph_capture_sizes,
        )
        rate = scenario.links.bytes_per_s.get("pcie_h2d") if device.kind == "cpu" else None
        link = PagedLink(rate, scenario.links.latency_us * 1e-6)
        seats = tuple(size for size in sizes if size <= engine.max_num_seqs)
        return cls(device, model, max_model_len, graphs=seats, link=link, transformer=transformer)

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
        """As `sim.simulation.Server`."""
        try:
            hashes = prefixes(trace, engine.limits.block_size)
        except InputError:  # the trace's blocks do not fit the engine's
            if engine.kv.prefix_caching or router.reads_prefixes:
                raise
            hashes = None
        try:
            self.last = serve(
                trace,
                cost,
                engine,
                hashes=hashes,
                make_executor=partial(self._executor, hashes, engine, paged),
                make_clock=MonotonicClock,
                router=router,
                router_seed=router_seed,
                signal_delay_ns=signal_delay_ns,
                max_concurrency=max_concurrency,
                until_ns=None if self.limit_s is None else round(self.limit_s * NS_PER_S),
            )
        finally:
            while self._open:
                self._open.pop().close()
        return self.last.requests, self.last.steps

    def _executor(
        self,
        hashes: BlockHashes | None,
        engine: EngineSetup,
        paged: PagedSteps | None,
        table: RequestTable,
        core: EngineCore,
    ) -> DeviceExecutor:
        size, device = engine.limits.block_size, self.device
        pool = KvBlocks(device, self.model, core.num_blocks, size)
        parts = EngineParts(
            device,
            self.transformer,
            pool,
            TokenStore(table, hashes, size, self.model.vocab_size),
            Movement(device, pool, core.allocator),
        )
        if paged is None:
            blocks = min(-(-self._max_model_len // size), core.num_blocks)
            executor = DeviceExecutor(parts, capture_sizes=self._graphs, max_blocks=blocks)
        else:
            pages = HostPages(device, self.model, pool, paged.paging.groups)
            link = self._page_link(pages)
            executor = PagedExecutor(parts, paged, pages, link)
        executor.warm_up(_WARM_STEPS)
        for index in range(len(table)):
            parts.tokens.of(index)
        return executor

    def _page_link(self, pages: HostPages) -> PageLink:
        rate, latency = self.link.bytes_per_s, self.link.latency_s
        opened = PageLink(pages.page_bytes, pages.fetch, bytes_per_s=rate, latency_s=latency)
        self._open.append(opened)
        return opened


def check_scenario(scenario: Scenario) -> None:
    """Raise ConfigError where a scenario has what the engine cannot run, naming the field."""
    engine, hardware, policies = scenario.engine, scenario.hardware, scenario.policies
    batcher = policies.batcher
    problems = (
        (scenario.cluster.replicas != 1, f"cluster.replicas: {scenario.cluster.replicas}, one engine runs"),
        (
            hardware.tensor_parallel_size != 1,
            f"hardware.tensor_parallel_size: {hardware.tensor_parallel_size}, one device runs",
        ),
        (
            hardware.weight_dtype not in ("auto", "float32", "bfloat16"),
            f"hardware.weight_dtype: {hardware.weight_dtype}, weights are as the device computes",
        ),
        (engine.kv_cache_dtype == "fp8", "engine.kv_cache_dtype: fp8, KV is as the device computes"),
        (
            engine.cache_at_start == "warm",
            "engine.cache_at_start: warm, the engine starts with an empty cache",
        ),
        (
            scenario.kv_compression.build() is not None,
            "kv_compression: a smaller KV cache, and the engine keeps every token as it is",
        ),
        (
            getattr(batcher, "padding", False),
            "policies.batcher.padding: true, and the engine computes no padding",
        ),
        (bool(scenario.links.background), "links.background: flows of others, which nobody here sends"),
        (bool(scenario.kv_tiers.disk_gib), "kv_tiers.disk_gib: a disk, and the engine has none"),
    )
    for wrong, what in problems:
        if wrong:
            raise ConfigError(f"{what}; change it to run the scenario on a device")
