"""Chunked prefill that takes the longest cached prefix first, with ageing."""

from __future__ import annotations

from typing import ClassVar, Literal

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.batching.orders.aged import AgedOrder, Reordering
from sim.batching.orders.longest_prefix import LongestPrefix
from sim.cost import StepCost


class PrefixFirst(Reordering):
    """Longest cached prefix first; those that share what is being computed follow it."""

    needs_prefix_cache: ClassVar[bool] = True

    name: Literal["prefix_first"] = "prefix_first"

    def build(self, limits: EngineLimits, cost: StepCost) -> PrefixFirstBatcher:  # noqa: ARG002
        order = AgedOrder(LongestPrefix(), self.lookahead, self.max_overtaken)
        return PrefixFirstBatcher(order, StepLimits(limits.max_num_batched_tokens))


class PrefixFirstBatcher:
    looks_every_step = False
    max_prompt_tokens = None

    def __init__(self, order: AgedOrder, limits: StepLimits) -> None:
        self.order = order
        self._limits = limits

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:  # noqa: ARG002
        return self._limits
