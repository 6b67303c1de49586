"""The scheduler against a real engine: replay a recorded run and compare every step.

The engine core gets the run's requests at the steps at which the real engine got them, and each of its steps starts
when the recorded one started; what is in a step is then up to the scheduler alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calibration.recorded_prefixes import block_contents
from calibration.step_log import RecordedStep, StepLogRun
from sim.batching.chunked import ChunkedBatcher
from sim.batching.decision import EngineLimits
from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import RequestTable
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.allocators.paged import PagedAllocator
from workloads.errors import ConfigError
from workloads.trace import NS_PER_S, Trace

COMPOSITION = ("prefill_tokens", "decode_seqs", "preempted")
"""What must be equal for a step to match; the rest is compared and reported beside it."""


@dataclass(frozen=True)
class CachedTokens:
    """Prompt tokens found in the prefix cache, over all requests, and for how many of them they are equal."""

    engine: int
    servetwin: int
    requests: int
    requests_equal: int


@dataclass(frozen=True)
class StepComparison:
    """A replayed run. `matching_by_field` also covers what is not needed for a match."""

    run: str
    engine: str
    steps: int
    matching: int
    first_mismatch: dict[str, Any] | None
    matching_by_field: dict[str, int]
    cached_tokens: CachedTokens | None

    @property
    def exact(self) -> bool:
        return self.matching == self.steps


def compare_steps(run: StepLogRun) -> StepComparison:
    """Replay `run` step by step."""
    matching = 0
    first: dict[str, Any] | None = None
    by_field: dict[str, int] = {}
    cached: dict[str, int] = {}
    for number, (recorded, ours) in enumerate(_replay(run, cached)):
        theirs = _composition(recorded)
        for name, value in theirs.items():
            by_field[name] = by_field.get(name, 0) + int(ours.get(name) == value)
        if all(ours.get(name) == theirs[name] for name in COMPOSITION):
            matching += 1
        elif first is None:
            first = {"step": number, "start_s": recorded.start_s, "engine": theirs, "servetwin": ours}
    return StepComparison(
        run.name, run.engine, len(run.steps), matching, first, by_field, _cached_tokens(run, cached)
    )


def _cached_tokens(run: StepLogRun, ours: dict[str, int]) -> CachedTokens | None:
    theirs = {r.request_id: r.cached_tokens for r in run.requests if r.cached_tokens is not None}
    if not run.prefix_caching or not theirs:
        return None
    equal = sum(ours.get(name) == tokens for name, tokens in theirs.items())
    return CachedTokens(sum(theirs.values()), sum(ours.values()), len(theirs), equal)


def _replay(run: StepLogRun, cached: dict[str, int]) -> Iterator[tuple[RecordedStep, dict[str, Any]]]:
    """Each recorded step beside what the engine core does at its time; fills `cached` by request."""
    requests = sorted(run.requests, key=lambda request: request.admit_s)
    table = RequestTable(
        Trace.build(
            [round(request.admit_s * NS_PER_S) for request in requests],
            [request.prompt_tokens for request in requests],
            [request.output_tokens for request in requests],
        ),
        block_contents(requests, run.block_size) if run.prefix_caching else None,
    )
    limits = EngineLimits(run.max_num_seqs, run.max_num_batched_tokens, run.block_size)
    allocator = (CachedPagedAllocator if run.prefix_caching else PagedAllocator)(
        run.num_gpu_blocks - 1, run.block_size
    )
    core = EngineCore(
        limits,
        ChunkedBatcher(run.max_num_batched_tokens),
        allocator,
        table,
        max_model_len=run.max_model_len,
    )
    sent = 0
    for step in run.steps:
        start_ns = round(step.start_s * NS_PER_S)
        while sent < len(requests) and table.arrival_ns[sent] <= start_ns:
            reason = core.submit(sent)
            if reason is not None:
                raise ConfigError(
                    f"{run.name}: request {requests[sent].request_id} {reason.replace('_', ' ')}"
                )
            sent += 1
        plan = core.schedule(start_ns)
        if plan is None:
            yield step, {}
            continue
        ids = [requests[sequence.index].request_id for sequence, _ in plan.chunks]
        for name, (sequence, _) in zip(ids, plan.chunks, strict=True):
            cached[name] = sequence.cached_tokens
        ours = _ours(plan, core, ids)
        core.commit(plan, 1, start_ns + round(step.duration_s * NS_PER_S))
        yield step, ours


def _composition(step: RecordedStep) -> dict[str, Any]:
    return {
        "prefill_tokens": step.prefill_tokens,
        "decode_seqs": step.decode_seqs,
        "preempted": step.preempted,
        "decode_context_tokens": step.decode_context_tokens,
        "running": step.running,
        "waiting": step.waiting,
        "kv_usage": step.kv_usage,
        "prefill_detail": [list(part) for part in step.prefill_detail],
    }


def _ours(plan: BatchPlan, core: EngineCore, ids: list[str]) -> dict[str, Any]:
    """The same of a plan, in the log's terms: context before the step, usage of all blocks but the null block."""
    return {
        "prefill_tokens": sum(new_tokens for new_tokens, _ in plan.shapes),
        "decode_seqs": plan.decodes,
        "preempted": len(plan.preempted),
        "decode_context_tokens": plan.context_tokens - plan.decodes,
        "running": core.num_running,
        "waiting": core.num_waiting,
        "kv_usage": round(plan.memory[0] / core.num_blocks, 4),
        "prefill_detail": [[name, before, new] for name, (new, before) in zip(ids, plan.shapes, strict=True)],
    }
