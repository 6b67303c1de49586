"""Continuous batching without chunks: a prompt runs whole, in one step, as soon as the token budget allows.

A prompt that exceeds the budget could never run. The engine refuses such requests; so does this one.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.cost import StepCost


class Continuous(BaseModel):
    """Iteration-level scheduling of whole prompts (Yu et al., "Orca", OSDI 2022)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    needs_prefix_cache: ClassVar[bool] = False

    name: Literal["continuous"] = "continuous"

    def build(self, limits: EngineLimits, cost: StepCost) -> ContinuousBatcher:  # noqa: ARG002
        return ContinuousBatcher(limits.max_num_batched_tokens)


class ContinuousBatcher:
    order = None
    looks_every_step = False

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.max_prompt_tokens = max_num_batched_tokens
        self._limits = StepLimits(max_num_batched_tokens, split_prompts=False)

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:  # noqa: ARG002
        return self._limits
