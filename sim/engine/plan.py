"""What an engine decided to run: one step, or several that are alike."""

from __future__ import annotations

from collections.abc import Sequence as Sized
from dataclasses import dataclass

from sim.engine.request import Sequence
from sim.kv.allocators.decision import Memory


@dataclass(slots=True)
class BatchPlan:
    """A step, or up to `steps` successive ones that are alike.

    decodes, context_tokens, window_context_tokens, growing   as `StepCost` wants them, for the first step
    chunks         (sequence, new tokens) of the prompts in the step; empty unless steps is 1
    shapes         (new tokens, tokens computed before) of the same
    steps          how many steps may be taken at once
    until_ns       the first step that ends at or after this time must be the last; None: no such time
    arrival_acts   whether an arrival could change the next step
    memory         how full the KV memory is while the first step runs
    prefix_queries, prefix_hits   tokens that requests looked up in the prefix cache when they first came, and found,
                   up to and with this step
    last_used_blocks   KV blocks held while the last step ran, once it is committed
    running        sequences admitted
    padded_rows    how many of the decodes are rows of a padded batch that yield nothing
    padded_tokens  tokens computed for nobody in each step, those included
    pool_blocks, last_pool_blocks   blocks held by pool, while the first step runs and once it is committed the last
    """

    decodes: int
    context_tokens: int
    window_context_tokens: int
    growing: int
    memory: Memory
    prefix_queries: int
    prefix_hits: int
    running: int
    last_used_blocks: int = 0
    steps: int = 1
    until_ns: int | None = None
    arrival_acts: bool = True
    padded_rows: int = 0
    padded_tokens: int = 0
    chunks: Sized[tuple[Sequence, int]] = ()
    shapes: Sized[tuple[int, int]] = ()
    preempted: Sized[Sequence] = ()
    pool_blocks: tuple[int, ...] = ()
    last_pool_blocks: tuple[int, ...] = ()
