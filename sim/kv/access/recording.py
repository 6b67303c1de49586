"""Recorded page accesses of one sequence: what a real attention read, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.kv.access.reads import AccessModel, Float64, Int64, num_blocks


@dataclass(frozen=True)
class Header:
    """What the rows mean.

    block_size      tokens of a page
    context_tokens  that the first step attends to, its own token included; each later step has one more
    num_layers      of the model, times `heads`
    heads           KV heads that are recorded apart: head h of layer i stands as layer i * heads + h
    source          whose attention this is, and how its pages were chosen, in words
    random_weights  whether nobody trained the model; None: not said
    """

    block_size: int
    context_tokens: int
    num_layers: int
    heads: int = 1
    source: str = ""
    random_weights: bool | None = None

    def pages(self, step: int) -> int:
        """Pages that hold the context of a step."""
        return num_blocks(self.context_tokens + step, self.block_size)


@dataclass(frozen=True, eq=False)
class Recording:
    """Rows as columns of one length, sorted by step, layer and page.

    step    decode steps from 0, each with rows
    layer   from 0
    page    block of tokens, from 0 at the start of the sequence
    weight  share of the layer's attention mass, 0 to 1
    """

    header: Header
    step: Int64
    layer: Int64
    page: Int64
    weight: Float64

    @property
    def steps(self) -> int:
        return int(self.step[-1]) + 1 if self.step.size else 0


def sample(access: AccessModel, sequence: int, context_tokens: int, steps: int) -> Recording:
    """Record `steps` steps of a model, each of its groups as a layer."""
    reads = [access.reads(sequence, context_tokens + step) for step in range(steps)]
    return Recording(
        Header(access.block_size, context_tokens, access.groups),
        np.repeat(np.arange(steps), [read.block.size for read in reads]),
        np.concatenate([read.group for read in reads]),
        np.concatenate([read.block for read in reads]),
        np.concatenate([read.weight for read in reads]),
    )
