"""Dynamic token chunking: the chunk of a step from free KV memory, urgency and a latency target.

The chunk is the largest for which the cost model predicts a step within the target time per output token, since
every decoding sequence waits for the whole step. It gives way where KV blocks are short, so that prompts do not
take the blocks that decodes are about to need, and it may stretch the target for urgent prompts.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.cost import StepCost

NS_PER_MS = 1_000_000


class DynamicChunked(BaseModel):
    """Chunks sized step by step."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    needs_prefix_cache: ClassVar[bool] = False

    name: Literal["dynamic_chunked"] = "dynamic_chunked"
    target_tpot_ms: float = Field(40.0, strict=True, gt=0)
    """Longest step that decoding sequences should wait for."""
    min_chunk_tokens: int = Field(64, strict=True, ge=1)
    """Smallest chunk while prompts wait, whatever the target says: the guarantee of progress."""
    kv_headroom: float = Field(0.05, strict=True, ge=0, lt=1)
    """Share of the KV blocks that prompts leave to growing sequences."""
    urgent_factor: float = Field(2.0, strict=True, ge=1)
    """Factor on the target while a prompt with a negative priority (more urgent than the default) is next."""

    def build(self, limits: EngineLimits, cost: StepCost) -> DynamicChunkedBatcher:
        return DynamicChunkedBatcher(self, limits, cost)


class DynamicChunkedBatcher:
    order = None
    looks_every_step = (
        False  # its chunk matters only in steps that run a prompt, and those are planned singly
    )
    max_prompt_tokens = None

    def __init__(self, config: DynamicChunked, limits: EngineLimits, cost: StepCost) -> None:
        self._target_ns = config.target_tpot_ms * NS_PER_MS
        self._urgent_factor = config.urgent_factor
        self._headroom = config.kv_headroom
        self._least = min(config.min_chunk_tokens, limits.max_num_batched_tokens)
        self._most = limits.max_num_batched_tokens
        self._block_size = limits.block_size
        self._cost = cost

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:  # noqa: ARG002
        most = self._most - view.num_decodes
        if view.num_decodes == 0 or most <= self._least:
            return StepLimits(max(most, 0))
        spare_blocks = view.free_blocks - int(view.num_blocks * self._headroom)
        by_memory = max(spare_blocks, 0) * self._block_size
        most = max(min(most, by_memory), self._least)
        target_ns = self._target_ns * (self._urgent_factor if view.top_priority < 0 else 1.0)
        return StepLimits(self._largest_within(target_ns, most, view))

    def _largest_within(self, target_ns: float, most: int, view: EngineView) -> int:
        """Largest chunk up to `most` whose step is predicted to take at most `target_ns`, to a block's width."""
        computed = view.next_prompt[1]
        decodes, context, window = view.num_decodes, view.context_tokens, view.window_context_tokens

        def fits(chunk: int) -> bool:
            return self._cost.mixed_ns(decodes, context, window, ((chunk, computed),)) <= target_ns

        if fits(most):
            return most
        low, high = self._least, most
        while high - low > self._block_size:
            middle = (low + high) // 2
            if fits(middle):
                low = middle
            else:
                high = middle
        return low
