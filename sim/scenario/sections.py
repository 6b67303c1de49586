"""A scenario: everything that a run depends on, as frozen data. Names are those of the serving engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim.batching import AnyBatcher
from sim.batching.chunked import Chunked
from sim.cost.cuda_graphs import CudaGraphMode
from sim.kv.allocators import AnyAllocator
from sim.kv.allocators.paged import Paged
from sim.kv.eviction import AnyEviction
from sim.kv.eviction.lru import Lru
from sim.kv.prefetch import AnyPrefetch
from sim.kv.prefetch.none import NoPrefetch
from sim.routing import AnyRouter
from sim.routing.least_loaded import LeastLoaded
from sim.scenario.kv_access import KvAccessConfig
from sim.scenario.kv_compression import KvCompressionConfig
from sim.scenario.kv_tiers import KvTiersConfig
from sim.scenario.links import LinksConfig
from sim.scenario.named import named
from sim.scenario.qos import QosConfig
from workloads.config import WorkloadConfig

CaptureSize = Annotated[int, Field(strict=True, ge=1, le=1_048_576)]


class Section(BaseModel):
    """A part of a scenario: frozen, and strict about its keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )


class HardwareConfig(Section):
    """The machine of one replica."""

    gpu: str | None = None
    """A shipped profile, by name (`servetwin profile list`)."""
    profile: str | None = None
    """Path of a profile of your own; instead of `gpu`."""
    tensor_parallel_size: int = Field(1, strict=True, ge=1, le=64)
    """GPUs that share each layer."""
    weight_dtype: Literal["auto", "float32", "bfloat16", "fp8", "fp8_block", "nvfp4"] = "auto"
    """Precision of the linear layers; auto is the checkpoint's own."""

    @model_validator(mode="after")
    def _one_source(self) -> HardwareConfig:
        if (self.gpu is None) == (self.profile is None):
            raise ValueError("give either gpu (a shipped profile) or profile (a path)")
        return self


class EngineConfig(Section):
    """The engine's own options, spelled as in vLLM."""

    max_num_seqs: int = Field(256, strict=True, ge=1, le=65_536)
    """Most sequences in a step."""
    max_num_batched_tokens: int = Field(8192, strict=True, ge=1, le=1_048_576)
    """Most tokens in a step."""
    max_model_len: int | None = Field(None, strict=True, ge=2)
    """Longest sequence; by default the model's own, or what the KV cache can hold if that is less."""
    async_scheduling: bool = Field(True, strict=True)
    """Whether the host prepares the next step while the device runs this one."""
    block_size: int = Field(16, strict=True, ge=1, le=1024)
    """Tokens of a KV block."""
    gpu_memory_utilization: float = Field(0.9, strict=True, gt=0, le=1)
    """Share of the device memory that the engine may use."""
    num_gpu_blocks_override: int | None = Field(None, strict=True, ge=2, le=100_000_000)
    """KV blocks, where known from the engine's log; one of them is the engine's own."""
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "fp8"] = "auto"
    """Precision of the KV cache; auto is 16-bit, or float32 where the weights are."""
    enforce_eager: bool = Field(False, strict=True)
    """Run without CUDA graphs."""
    cudagraph_mode: CudaGraphMode = "full_and_piecewise"
    """Which steps replay graphs: all up to the largest size, those of pure decode, or none."""
    cudagraph_capture_sizes: tuple[CaptureSize, ...] | None = None
    """Token counts with a captured graph; by default the engine's list."""
    enable_prefix_caching: bool = Field(False, strict=True)
    """Whether full KV blocks stay findable for later prompts with the same prefix."""
    cache_at_start: Literal["cold", "warm"] = "cold"
    """Prefix cache at the start: empty, or as after the same requests were served once before."""

    @model_validator(mode="after")
    def _seats_within_budget(self) -> EngineConfig:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), since every running sequence takes a token a step"
            )
        return self

    @model_validator(mode="after")
    def _eager_has_no_graphs(self) -> EngineConfig:
        if self.enforce_eager and self.cudagraph_capture_sizes is not None:
            raise ValueError("enforce_eager runs without CUDA graphs; leave cudagraph_capture_sizes out")
        if self.enforce_eager and self.cudagraph_mode != "full_and_piecewise":
            raise ValueError("enforce_eager runs without CUDA graphs; leave cudagraph_mode out")
        if self.cudagraph_mode == "none" and self.cudagraph_capture_sizes is not None:
            raise ValueError("cudagraph_mode none captures nothing; leave cudagraph_capture_sizes out")
        return self

    @model_validator(mode="after")
    def _warm_needs_a_cache(self) -> EngineConfig:
        if self.cache_at_start == "warm" and not self.enable_prefix_caching:
            raise ValueError("cache_at_start: warm needs enable_prefix_caching: true")
        return self


class ClusterConfig(Section):
    """How many replicas there are, and what the router hears of them."""

    replicas: int = Field(1, strict=True, ge=1, le=4096)
    """Engines behind the router."""
    signal_delay_ms: float = Field(0.0, strict=True, ge=0, le=1e9)
    """How late the router learns that requests finished."""
    price_per_gpu_hour: float = Field(3.0, strict=True, ge=0)
    """For costs, in a currency of yours."""


class PoliciesConfig(Section):
    """Who decides; each a name, or a mapping with a name and options."""

    router: Annotated[AnyRouter, BeforeValidator(named)] = LeastLoaded()
    """Which replica a request goes to."""
    batcher: Annotated[AnyBatcher, BeforeValidator(named)] = Chunked()
    """Which tokens a step takes."""
    allocator: Annotated[AnyAllocator, BeforeValidator(named)] = Paged()
    """Who holds which KV memory; paged is the engine's own."""
    eviction: Annotated[AnyEviction, BeforeValidator(named)] = Lru()
    """Which cached blocks go first; lru is the engine's own order."""
    prefetch: Annotated[AnyPrefetch, BeforeValidator(named)] = NoPrefetch()
    """What comes to HBM before it is asked for: pages that a step reads (kv_access), or a session's KV (kv_tiers)."""


class SloConfig(Section):
    """Limits that a request must keep to count as good."""

    ttft_ms: float | None = Field(None, strict=True, gt=0)
    """Time to first token."""
    tpot_ms: float | None = Field(None, strict=True, gt=0)
    """Time per output token, over a request."""
    e2el_ms: float | None = Field(None, strict=True, gt=0)
    """End-to-end latency."""

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limits that are set, by metric."""
        limits = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2el": self.e2el_ms}
        return {name: limit for name, limit in limits.items() if limit is not None}


class SimulationConfig(Section):
    """How to compute; never what comes out."""

    fast_forward: bool = Field(True, strict=True)
    """Take steps that cannot differ at once. The results are the same either way."""


class Scenario(Section):
    """One simulated service and its load."""

    model: str
    """A shipped model, or the path of a Hugging Face config.json."""
    hardware: HardwareConfig
    """The machine of one replica."""
    engine: EngineConfig = EngineConfig.model_construct()
    """Engine options."""
    kv_compression: KvCompressionConfig = KvCompressionConfig.model_construct()
    """A KV cache made smaller, by layer or by age."""
    kv_tiers: KvTiersConfig = KvTiersConfig.model_construct()
    """Host memory and disk below the prefix cache."""
    kv_access: KvAccessConfig = KvAccessConfig.model_construct()
    """KV in host memory, of which HBM holds a part."""
    cluster: ClusterConfig = ClusterConfig.model_construct()
    """Replicas."""
    policies: PoliciesConfig = PoliciesConfig.model_construct()
    """Who decides."""
    links: LinksConfig = LinksConfig.model_construct()
    """Bandwidths, and what others send over them."""
    qos: QosConfig | None = None
    """Tiers of service: pools of KV blocks and seats for tenants; by default all share everything."""
    workload: WorkloadConfig
    """What arrives."""
    slo: SloConfig = SloConfig.model_construct()
    """What counts as good."""
    simulation: SimulationConfig = SimulationConfig.model_construct()
    """How to compute."""
    seed: int = Field(0, strict=True, ge=0, lt=2**63)
    """Every random number of the run follows from it."""

    @property
    def routes(self) -> frozenset[str]:
        """Routes of `sim/links/machine.py` on which the engines themselves make transfers."""
        routes = {"copy"} if self.policies.allocator.name == "grow" else set()
        if self.kv_access.pattern is not None:
            routes.add("load")
        return self.kv_tiers.routes.union(routes)

    @model_validator(mode="after")
    def _links_act(self) -> Scenario:
        self.links.check(self.cluster.replicas, self.routes)
        return self

    @model_validator(mode="after")
    def _a_cache_needs_pages(self) -> Scenario:
        if self.engine.enable_prefix_caching and self.policies.allocator.name != "paged":
            raise ValueError(
                f"policies.allocator: {self.policies.allocator.name} keeps each sequence's KV to itself, and a prefix "
                "cache shares blocks; take paged, or set engine.enable_prefix_caching: false"
            )
        return self

    @model_validator(mode="after")
    def _policies_that_need_a_cache(self) -> Scenario:
        if self.engine.enable_prefix_caching:
            return self
        policies = self.policies
        if policies.batcher.needs_prefix_cache:
            raise ValueError(
                f"policies.batcher: {policies.batcher.name} would order the queue by what a prefix cache holds; "
                "set engine.enable_prefix_caching: true"
            )
        if policies.router.reads_prefixes:
            raise ValueError(
                f"policies.router: {policies.router.name} acts on prefix caches; "
                "set engine.enable_prefix_caching: true"
            )
        return self

    @model_validator(mode="after")
    def _eviction_needs_a_cache(self) -> Scenario:
        if self.policies.eviction.name != "lru" and not self.engine.enable_prefix_caching:
            raise ValueError(
                f"policies.eviction: {self.policies.eviction.name} acts on a prefix cache; "
                "set engine.enable_prefix_caching: true"
            )
        return self

    @model_validator(mode="after")
    def _pools_fit(self) -> Scenario:
        if self.qos is None:
            return self
        name = self.policies.allocator.name
        if name != "paged":
            raise ValueError(
                f"policies.allocator: {name} makes no pools for qos; take paged, or leave qos out"
            )
        if self.kv_compression.ages:
            raise ValueError(
                "kv_compression: pools of qos hold tokens of one size; leave hot_tokens, keep_ratio and "
                "sliding_window out, or qos"
            )
        if self.kv_access.pattern is not None:
            raise ValueError("kv_access.pattern: pages one pool of KV blocks; leave qos out")
        if self.policies.router.watches_caches:
            raise ValueError(
                f"policies.router: {self.policies.router.name} with signal cached goes by one prefix cache a replica, "
                "and qos makes one a tier; take signal own, or leave qos out"
            )
        if self.qos.manages_cache is not None and not self.engine.enable_prefix_caching:
            raise ValueError(
                f"{self.qos.manages_cache}: acts on a prefix cache; set engine.enable_prefix_caching: true"
            )
        if self.engine.enable_prefix_caching:
            self.qos.check_cache(self.policies.eviction.name)
        return self

    @model_validator(mode="after")
    def _compression_fits(self) -> Scenario:
        engine, section = self.engine, self.kv_compression
        if section.ages and engine.enable_prefix_caching:
            raise ValueError(
                "kv_compression: blocks of a prefix cache hold every token as it was computed; leave hot_tokens, "
                "keep_ratio and sliding_window out, or set engine.enable_prefix_caching: false"
            )
        if section.ages and self.policies.allocator.name != "paged":
            raise ValueError(
                f"policies.allocator: {self.policies.allocator.name} knows no tokens that shrink; with hot_tokens, "
                "keep_ratio or sliding_window of kv_compression take paged"
            )
        if section.hot_tokens is not None and engine.kv_cache_dtype == "fp8":
            raise ValueError(
                "engine.kv_cache_dtype: fp8 leaves no 16-bit tokens for kv_compression.hot_tokens to keep"
            )
        return self

    @model_validator(mode="after")
    def _prefetch_needs_pages_to_fetch(self) -> Scenario:
        name = self.policies.prefetch.name
        if name == "session":
            if not self.kv_tiers.host_gib:
                raise ValueError(
                    "policies.prefetch: session brings KV back from host memory; set kv_tiers.host_gib"
                )
        elif name != "none" and self.kv_access.pattern is None:
            raise ValueError(
                f"policies.prefetch: {name} fetches KV from host memory, and all of it is in HBM; set kv_access.pattern"
            )
        return self

    @model_validator(mode="after")
    def _tiers_fit(self) -> Scenario:
        if not self.kv_tiers.host_gib:
            return self
        if not self.engine.enable_prefix_caching:
            raise ValueError(
                "kv_tiers: blocks in host memory are found by their content, as a prefix cache's; "
                "set engine.enable_prefix_caching: true"
            )
        if self.qos is not None:
            raise ValueError("kv_tiers: pools of qos have no host memory; leave kv_tiers or qos out")
        if self.policies.eviction.name == "ttl":
            raise ValueError(
                "policies.eviction: what expires in HBM by ttl would still be found in host memory; "
                "take another policy, or leave kv_tiers out"
            )
        if self.kv_tiers.disk_gib and self.links.disk is None:
            raise ValueError(
                "kv_tiers.disk_gib: no profile knows the disk's bandwidth; give links.disk in GB/s"
            )
        return self

    @model_validator(mode="after")
    def _paging_fits(self) -> Scenario:
        if self.kv_access.pattern is None:
            return self
        if self.policies.allocator.name != "paged":
            raise ValueError(
                f"policies.allocator: {self.policies.allocator.name} does not go with kv_access.pattern, which pages "
                "the blocks of paged"
            )
        if self.engine.enable_prefix_caching:
            raise ValueError(
                "kv_access.pattern: each sequence has pages of its own, and a prefix cache shares blocks; "
                "set engine.enable_prefix_caching: false"
            )
        if self.kv_compression.build() is not None:
            raise ValueError(
                "kv_access.pattern: pages hold what the model's own KV takes; leave kv_compression out"
            )
        return self
