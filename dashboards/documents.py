"""What the JSON and YAML files of results hold, as far as a page needs it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a result file; keys that no page needs may come and go."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ProfileName(Part):
    """Which measurements a run stands on."""

    name: str
    engine: str | None = None
    hash: str | None = None


class OwnSummary(Part):
    """What a summary holds under `sim`."""

    profile: ProfileName
    num_gpu_blocks: int
    replicas: int = 1
    gpus: int | None = None
    seed: int | None = None
    servetwin: str | None = None
    max_model_len: int | None = None
    preemptions: int = 0
    prefix_hit_rate: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_peak: float | None = None
    busy_fraction: float | None = None
    rejected: dict[str, int] = {}
    extrapolated: dict[str, Any] = {}
    warnings: list[str] = []
    kv_internal_waste_mean: float | None = None
    kv_fragmentation_mean: float | None = None
    links: dict[str, dict[str, Any]] = {}
    transfer_wait_s: float | None = None
    prefetch: dict[str, Any] | None = None
    kv_tiers: dict[str, Any] | None = None
    kv_compression: dict[str, Any] | None = None
    tenants: dict[str, dict[str, Any]] = {}


class Summary(Part):
    """A result file of a run; every number at its top level is in `metrics`."""

    model_id: str
    num_prompts: int
    completed: int
    duration: float
    request_rate: float | str | None = None
    max_concurrency: int | None = None
    sim: OwnSummary
    metrics: dict[str, float] = {}


class Limits(Part):
    """The limits of a scenario, None where there is none [ms]."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None


class LockedEngine(Part):
    """The engine options that a page reads."""

    block_size: int = 16


class LockedScenario(Part):
    """The part of a resolved scenario that a page reads."""

    model: str | None = None
    slo: Limits = Limits()
    hardware: dict[str, Any] = {}
    engine: LockedEngine = LockedEngine()


class Lock(Part):
    """A lock file: the scenario as it ran, and what it ran on."""

    scenario: LockedScenario
    servetwin: str | None = None
    profile: ProfileName | None = None
    num_gpu_blocks: int | None = None
    max_model_len: int | None = None
    text: str = ""


class Arm(Part):
    """One side of a comparison: its name, what it sets, and its metrics over all replications."""

    name: str
    set: dict[str, Any] | list[str] | str | None = None
    metrics: dict[str, Any]
    directory: str | None = None
    gpus: int | None = None
    cost_per_hour: float | None = None


class Difference(Part):
    """Paired difference of an arm to the first arm, with its confidence interval."""

    arm: str
    metric: str
    delta: float | None
    relative: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


class Warmup(Part):
    """How many of the first requests were left out of every replication, and by which rule."""

    rule: str
    removed: int
    requests: int


class Comparison(Part):
    """What `servetwin compare` found."""

    arms: list[Arm]
    differences: list[Difference] = []
    winner: str | None = None
    verdict: str
    metric: str | None = None
    replications: int | None = None
    confidence: float | None = None
    warmup: Warmup | None = None
    engine_flags: str | None = None
    engine_notes: list[str] = []
    warnings: list[str] = []


class PlanPoint(Part):
    """What was seen at one rate and size; without metrics where the queue would never drain."""

    request_rate: float
    replicas: int
    met: bool
    metrics: dict[str, float | None] | None = None


class Plan(Part):
    """What `servetwin plan` found: replicas for the scenario's rate, and the greatest rate of its replicas."""

    replicas: int | None = None
    gpus: int | None = None
    cost_per_hour: float | None = None
    max_request_rate: float | None = None
    slo_met: bool | None = None
    binding_constraint: str | None = None
    explanation: str | None = None
    request_rate: float | None = None
    scenario_replicas: int | None = None
    saturation_rate: float | None = None
    slo: dict[str, float] = {}
    curve: list[PlanPoint] = []
    replications: int | None = None
    num_requests: int | None = None
    seed: int | None = None
    warnings: list[str] = []
