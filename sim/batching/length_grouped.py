"""Chunked prefill that batches by length: one group of similar prompts at a time, under a bound on the batch's tokens.

The bound is what makes a batch cache-aware: contexts that fill the KV pool and no more, so that growth preempts less;
or contexts whose KV of one layer fits the GPU's L2 cache together. L2 misses are not simulated: with `budget: l2` the
smaller batches are, and what they would save on the device is not. A prefix that several sequences share counts for
each of them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.batching.orders.aged import AgedOrder, Reordering
from sim.batching.orders.length_groups import LengthGroups
from sim.cost import StepCost
from sim.errors import ConfigError

_KV_SHARE = 0.9


class LengthGrouped(Reordering):
    """Groups by prompt length, quantiles of the latest arrivals."""

    needs_prefix_cache: ClassVar[bool] = False

    name: Literal["length_grouped"] = "length_grouped"
    groups: int = Field(4, strict=True, ge=1, le=1024)
    """Quantile bins of the prompt lengths; requests join from one of them as long as it has some."""
    history: int = Field(1024, strict=True, ge=1, le=65_536)
    """Latest arrivals whose lengths the bins are made from."""
    budget: Literal["kv_pool", "l2"] | Annotated[int, Field(strict=True, ge=1)] = "kv_pool"
    """Most tokens of a batch when another request joins: kv_share of the KV pool, as many as the L2 cache of the GPU
    holds of one layer's KV, or a number."""
    kv_share: float | None = Field(None, strict=True, gt=0, le=1)
    """Of the KV pool, with budget: kv_pool; by default 0.9. The rest is for sequences to grow."""

    @model_validator(mode="after")
    def _share_of_the_pool(self) -> LengthGrouped:
        if self.kv_share is not None and self.budget != "kv_pool":
            raise ValueError(f"kv_share acts with budget: kv_pool, not with {self.budget}; leave it out")
        return self

    def build(self, limits: EngineLimits, cost: StepCost) -> LengthGroupedBatcher:  # noqa: ARG002
        groups = LengthGroups(self.groups, self.history)
        order = AgedOrder(groups, self.lookahead, self.max_overtaken)
        return LengthGroupedBatcher(
            order, StepLimits(limits.max_num_batched_tokens, batch_tokens=self._most(limits))
        )

    def _most(self, limits: EngineLimits) -> int:
        if isinstance(self.budget, int):
            return self.budget
        most = limits.kv_tokens if self.budget == "kv_pool" else limits.l2_tokens
        if most is None:
            raise ConfigError(
                f"policies.batcher.budget: {self.budget} is not known here; give a number of tokens"
            )
        if self.budget == "kv_pool":
            most = int(most * (_KV_SHARE if self.kv_share is None else self.kv_share))
        return max(most, 1)


class LengthGroupedBatcher:
    looks_every_step = (
        False  # contexts only grow while nothing finishes, so what found no room finds none later
    )
    max_prompt_tokens = None

    def __init__(self, order: AgedOrder, limits: StepLimits) -> None:
        self.order = order
        self._limits = limits

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:  # noqa: ARG002
        return self._limits
