"""A scenario's engine as a vLLM command line, and in words what the engine has no flag for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sim.batching.chunked import Chunked
from sim.scenario.sections import EngineConfig, Scenario

# Always said: the engine's own defaults depend on its version and on the GPU (max_num_seqs, max_num_batched_tokens
# and gpu_memory_utilization), so that leaving them out would not give what was simulated.
_ALWAYS = ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
_OTHER = (
    "max_model_len",
    "async_scheduling",
    "block_size",
    "num_gpu_blocks_override",
    "kv_cache_dtype",
    "enforce_eager",
    "cudagraph_capture_sizes",
)


@dataclass(frozen=True)
class EngineFlags:
    """Flags of `vllm serve`, and what they do not say."""

    flags: str
    notes: tuple[str, ...]


def engine_flags(scenario: Scenario, varied: Collection[str] = ()) -> EngineFlags:
    """Flags for what differs from the defaults or was `varied` (paths of fields), and for limits always."""
    engine, default = scenario.engine, EngineConfig()
    words: list[str] = []
    notes: list[str] = []
    for name in (*_ALWAYS, *_OTHER):
        value = getattr(engine, name)
        if name in _ALWAYS or value != getattr(default, name) or f"engine.{name}" in varied:
            words += _flag(name, value)
    words += _flag("enable_prefix_caching", engine.enable_prefix_caching)  # said either way: defaults differ
    notes += _cache_notes(scenario)
    tensor_parallel_size = scenario.hardware.tensor_parallel_size
    if tensor_parallel_size > 1 or "hardware.tensor_parallel_size" in varied:
        words += _flag("tensor_parallel_size", tensor_parallel_size)
    if scenario.hardware.weight_dtype != "auto":
        notes.append(
            f"weights in {scenario.hardware.weight_dtype}: no flag; serve a checkpoint in that precision"
        )
    _tiers(scenario, words, notes)
    notes += _paging_notes(scenario)
    notes += _memory_notes(scenario)
    if any(path.startswith("workload.sessions") for path in varied):
        notes.append("context_policy: what a prompt repeats is the application's to say, not the engine's")
    _batcher(scenario, words, notes)
    replicas = scenario.cluster.replicas
    if replicas > 1 or "policies.router" in varied:
        notes.append(
            f"{replicas} engines, each with these flags, behind a router that works by {scenario.policies.router.name}"
        )
    return EngineFlags(" ".join(words), tuple(notes))


def _cache_notes(scenario: Scenario) -> list[str]:
    notes = []
    eviction = scenario.policies.eviction.name
    if eviction == "belady":
        notes.append(
            "belady: an oracle that knows the requests to come; a bound for other policies, nothing to build"
        )
    elif eviction != "lru":
        notes.append(
            f"eviction {eviction}: the engine evicts by lru and has no flag for another; it would need building"
        )
    if scenario.engine.cache_at_start == "warm":
        notes.append("cache_at_start warm: a state at the start of the run, not a setting")
    return notes


def _tiers(scenario: Scenario, words: list[str], notes: list[str]) -> None:
    """The engine's own offloading writes through to host memory, evicts by lru and reloads whatever it finds."""
    section = scenario.kv_tiers
    if not section.host_gib:
        return
    words += ["--kv-offloading-size", f"{section.host_gib:g}", "--kv-offloading-backend", "native"]
    other = {"disk_gib": 0.0, "write": "through", "reload": "always", "preempt": "recompute"}
    differing = [name for name, value in other.items() if getattr(section, name) != value]
    if section.eviction.name != "lru":
        differing.append("eviction")
    if differing:
        notes.append(f"kv_tiers {', '.join(differing)}: the engine's own offloading has no flag for that")
    if scenario.policies.prefetch.name == "session":
        notes.append("prefetch session: the engine loads KV when it is asked for; it would need building")


def _paging_notes(scenario: Scenario) -> list[str]:
    if scenario.kv_access.pattern is None:
        return []
    notes = ["kv_access: the engine holds the KV of running sequences in HBM; paging it would need building"]
    if scenario.policies.prefetch.name == "oracle":
        notes.append(
            "oracle: knows what attention will read; a bound for other prefetchers, nothing to build"
        )
    return notes


def _memory_notes(scenario: Scenario) -> list[str]:
    notes = []
    if scenario.policies.allocator.name != "paged":
        notes.append(
            f"allocator {scenario.policies.allocator.name}: the engine gives out KV in pages; it would need building"
        )
    if scenario.kv_compression != type(scenario.kv_compression)():
        notes.append(
            "kv_compression: a matter of the model and of attention kernels; the engine has no flag for it"
        )
    if scenario.qos is not None:
        notes.append("qos: the engine knows no tiers of service; they would need building, or an engine each")
    return notes


def _flag(name: str, value: Any) -> list[str]:  # noqa: ANN401  any field of the engine
    option = name.replace("_", "-")
    if value is None:
        return []  # the engine decides, as it did here
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    if isinstance(value, tuple):
        return [f"--{option}", *map(str, value)]
    return [f"--{option}", str(value)]


def _batcher(scenario: Scenario, words: list[str], notes: list[str]) -> None:
    batcher = scenario.policies.batcher
    if batcher.name == "continuous":
        words.append("--no-enable-chunked-prefill")
    elif isinstance(batcher, Chunked):
        if batcher.chunk_tokens is not None:
            notes.append(
                f"chunk_tokens {batcher.chunk_tokens}: the engine has no such limit apart from the one on all "
                "tokens of a step; nearest is a lower --max-num-batched-tokens"
            )
    else:
        notes.append(
            f"{batcher.name}: the engine has no such policy, and no flag comes near; it would need building"
        )
