"""What an engine decided to run: one step, or several that are alike."""

from __future__ import annotations

from collections.abc import Sequence as Sized
from dataclasses import dataclass
from typing import NamedTuple

from sim.engine.request import Sequence


class Memory(NamedTuple):
    """KV memory of an engine at a step.

    used_blocks     blocks that sequences hold
    stored_tokens   tokens that have KV in them, a shared block counted once
    largest_free    the largest request that could be placed, in blocks
    cached_blocks   blocks that nobody holds and a prefix could be found in
    prefix_queries, prefix_hits   tokens looked up in the prefix cache, and found, up to and with this step
    """

    used_blocks: int
    stored_tokens: int
    largest_free: int
    cached_blocks: int
    prefix_queries: int
    prefix_hits: int


@dataclass(slots=True)
class BatchPlan:
    """A step, or up to `steps` successive ones that are alike.

    decodes, context_tokens, window_context_tokens, growing   as `StepCost` wants them, for the first step
    chunks         (sequence, new tokens) of the prompts in the step; empty unless steps is 1
    shapes         (new tokens, tokens computed before) of the same
    steps          how many steps may be taken at once
    until_ns       the first step that ends at or after this time must be the last; None: no such time
    arrival_acts   whether an arrival could change the next step
    memory         the KV memory while the first step runs
    last_used_blocks   KV blocks held while the last step ran, once it is committed
    running        sequences admitted
    """

    decodes: int
    context_tokens: int
    window_context_tokens: int
    growing: int
    memory: Memory
    running: int
    last_used_blocks: int = 0
    steps: int = 1
    until_ns: int | None = None
    arrival_acts: bool = True
    chunks: Sized[tuple[Sequence, int]] = ()
    shapes: Sized[tuple[int, int]] = ()
    preempted: Sized[Sequence] = ()
