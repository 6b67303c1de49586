"""Request-level batching: a batch is formed, runs to its end, and only then the next one is formed.

With a wait window and a size cap this is what inference servers call dynamic batching: the first request of the
queue waits at most `max_wait_ms` for the batch to fill.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.cost import StepCost

NS_PER_MS = 1_000_000


class StaticBatch(BaseModel):
    """Batches of whole prompts that start together; as many as the queue, the cap and one step can hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["static_batch"] = "static_batch"
    batch_size: int | None = Field(None, strict=True, ge=1)
    """Most requests of a batch; by default max_num_seqs."""
    max_wait_ms: float = Field(0.0, strict=True, ge=0, le=1e9)
    """How long the oldest request waits for the batch to fill."""

    def build(self, limits: EngineLimits, cost: StepCost) -> StaticBatcher:  # noqa: ARG002
        size = min(self.batch_size or limits.max_num_seqs, limits.max_num_seqs)
        return StaticBatcher(size, round(self.max_wait_ms * NS_PER_MS), limits.max_num_batched_tokens)


class StaticBatcher:
    order = None
    looks_every_step = False

    def __init__(self, batch_size: int, max_wait_ns: int, max_num_batched_tokens: int) -> None:
        self.max_prompt_tokens = max_num_batched_tokens
        self._batch_size = batch_size
        self._max_wait_ns = max_wait_ns
        self._tokens = max_num_batched_tokens
        self._closed = StepLimits(0, split_prompts=False, admissions=0)

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:
        if view.num_running:
            return self._closed
        ready_ns = view.oldest_wait_ns + self._max_wait_ns
        if view.num_waiting < self._batch_size and now_ns < ready_ns:
            return StepLimits(0, split_prompts=False, admissions=0, next_change_ns=ready_ns)
        return StepLimits(self._tokens, split_prompts=False, admissions=self._batch_size)
