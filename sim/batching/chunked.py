"""Chunked prefill with a fixed token budget (static chunking), the engine's default.

Decodes first; what they leave of the budget goes to prompts in the order of arrival, the last of them cut to fit.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.cost import StepCost
from sim.errors import ConfigError


class Chunked(BaseModel):
    """Static chunking."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    needs_prefix_cache: ClassVar[bool] = False

    name: Literal["chunked"] = "chunked"
    chunk_tokens: int | None = Field(None, strict=True, ge=1)
    """Most prompt tokens of a step; by default what decodes leave of max_num_batched_tokens."""

    def build(self, limits: EngineLimits, cost: StepCost) -> ChunkedBatcher:  # noqa: ARG002
        if self.chunk_tokens is not None and self.chunk_tokens > limits.max_num_batched_tokens:
            raise ConfigError(
                f"policies.batcher.chunk_tokens: {self.chunk_tokens} exceeds engine.max_num_batched_tokens "
                f"({limits.max_num_batched_tokens}), which bounds every step"
            )
        return ChunkedBatcher(self.chunk_tokens or limits.max_num_batched_tokens)


class ChunkedBatcher:
    order = None
    looks_every_step = False
    max_prompt_tokens = None

    def __init__(self, chunk_tokens: int) -> None:
        self._limits = StepLimits(chunk_tokens)

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:  # noqa: ARG002
        return self._limits
