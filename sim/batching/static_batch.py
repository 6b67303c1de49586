"""Request-level batching: a batch is formed, runs to its end, and only then the next one is formed.

With a wait window and a size cap this is what inference servers call dynamic batching: the first request of the
queue waits at most `max_wait_ms` for the batch to fill. With padding it is how models were served before that, and
how translation still is: a batch is a rectangle as long as its longest prompt, of at most `max_num_batched_tokens`
tokens, and every row is computed until the last answer is done. What a row computes beyond its own request is
padding; batches of similar lengths (`group_by: length`) have less of it, and hold more requests in the same tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.batching.decision import EngineLimits, EngineView, QueueOrder, StepLimits
from sim.batching.orders.aged import AgedOrder
from sim.batching.orders.longest_prefix import LongestPrefix
from sim.batching.orders.nearest_length import NearestLength
from sim.cost import StepCost

NS_PER_MS = 1_000_000
_LOOKAHEAD = 256
_MAX_OVERTAKEN = 16


class StaticBatch(BaseModel):
    """Batches of whole prompts that start together; as many as the queue, the cap and one step can hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["static_batch"] = "static_batch"
    batch_size: int | None = Field(None, strict=True, ge=1)
    """Most requests of a batch; by default max_num_seqs."""
    max_wait_ms: float = Field(0.0, strict=True, ge=0, le=1e9)
    """How long the oldest request waits for the batch to fill."""
    padding: bool = Field(False, strict=True)
    """Whether every row of a batch costs as much as the longest, to the end of the batch."""
    group_by: Literal["none", "length", "prefix"] = "none"
    """Who joins a batch: the oldest; those nearest in length to the oldest; those with the longest cached prefix."""
    lookahead: int | None = Field(None, strict=True, ge=1, le=65_536)
    """How many of the oldest requests a grouped batch is chosen from; by default 256."""
    max_overtaken: int | None = Field(None, strict=True, ge=0, le=1_000_000_000)
    """How often grouping by prefix may let others go before a request; by default 16. Length needs no such bound."""

    @model_validator(mode="after")
    def _groups_have_options(self) -> StaticBatch:
        if self.lookahead is not None and self.group_by == "none":
            raise ValueError(
                "lookahead acts on grouped batches; set group_by: length or prefix, or leave it out"
            )
        if self.max_overtaken is not None and self.group_by != "prefix":
            raise ValueError(
                "max_overtaken acts on batches grouped by prefix; set group_by: prefix, or leave it out"
            )
        return self

    @property
    def needs_prefix_cache(self) -> bool:
        return self.group_by == "prefix"

    def build(self, limits: EngineLimits, cost: StepCost) -> StaticBatcher:  # noqa: ARG002
        size = min(self.batch_size or limits.max_num_seqs, limits.max_num_seqs)
        batch = StepLimits(
            limits.max_num_batched_tokens, split_prompts=False, admissions=size, padded=self.padding
        )
        wait_ns = round(self.max_wait_ms * NS_PER_MS)
        lookahead = _LOOKAHEAD if self.lookahead is None else self.lookahead
        if self.group_by == "length":
            return StaticBatcher(batch, wait_ns, nearest=NearestLength(lookahead))
        if self.group_by == "prefix":
            overtaken = _MAX_OVERTAKEN if self.max_overtaken is None else self.max_overtaken
            return StaticBatcher(batch, wait_ns, AgedOrder(LongestPrefix(), lookahead, overtaken))
        return StaticBatcher(batch, wait_ns)


class StaticBatcher:
    looks_every_step = False

    def __init__(
        self,
        batch: StepLimits,
        max_wait_ns: int,
        order: AgedOrder | None = None,
        nearest: NearestLength | None = None,
    ) -> None:
        self.order: QueueOrder | None = nearest or order
        self.max_prompt_tokens = batch.prefill_tokens
        self._batch = batch
        self._closed = replace(batch, admissions=0)
        self._max_wait_ns = max_wait_ns
        self._nearest = nearest

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:
        if view.num_running:
            return self._closed
        ready_ns = view.oldest_wait_ns + self._max_wait_ns
        if view.num_waiting < self._batch.admissions and now_ns < ready_ns:
            return replace(self._closed, next_change_ns=ready_ns)
        if self._nearest is not None:
            self._nearest.start_batch()
        return self._batch
