"""What an engine decided to run: one step, or several that are alike."""

from __future__ import annotations

from collections.abc import Sequence as Sized
from dataclasses import dataclass

from sim.engine.request import Sequence


@dataclass(slots=True)
class BatchPlan:
    """A step, or up to `steps` successive ones that are alike.

    decodes, context_tokens, window_context_tokens, growing   as `StepCost` wants them, for the first step
    chunks         (sequence, new tokens) of the prompts in the step; empty unless steps is 1
    shapes         (new tokens, tokens computed before) of the same
    steps          how many steps may be taken at once
    until_ns       the first step that ends at or after this time must be the last; None: no such time
    arrival_acts   whether an arrival could change the next step
    memory         of the KV while the first step runs: blocks held, tokens stored, largest free run of blocks;
                   last_memory, once committed, the same while the last one ran
    running        sequences admitted
    """

    decodes: int
    context_tokens: int
    window_context_tokens: int
    growing: int
    memory: tuple[int, int, int]
    running: int
    last_memory: tuple[int, int, int] = (0, 0, 0)
    steps: int = 1
    until_ns: int | None = None
    arrival_acts: bool = True
    chunks: Sized[tuple[Sequence, int]] = ()
    shapes: Sized[tuple[int, int]] = ()
    preempted: Sized[Sequence] = ()
