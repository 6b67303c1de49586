"""What an access pattern answers: the pages that one decode step of one sequence reads.

A page is a block of `block_size` tokens in one group of successive layers; block 0 holds the first tokens. The step
is named by the context that its query attends to, its own token included: a step recomputed after a preemption is
the same step and reads the same pages. An answer depends on the seed, the sequence and the context, and on nothing
else: not on the order of questions, not on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Reads:
    """Pages read, by group and then by block; no page stands twice.

    group, block  (n,) of each page
    weight        (n,) its share of the attention mass of its (sequence, group), 0 to 1: over all pages of the
                  sequence the shares add up to 1, so over those read to at most 1
    """

    group: Int64
    block: Int64
    weight: Float64

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_], weight: Float64 | None = None) -> Reads:
        """Pages where `mask` (groups, blocks) holds; without `weight` (same shape) all pages of a group weigh alike."""
        group, block = np.nonzero(mask)
        if weight is None:
            shares = 1.0 / np.maximum(mask.sum(axis=1), 1)
            return cls(group, block, shares[group])
        return cls(group, block, weight[group, block])

    @classmethod
    def nothing(cls) -> Reads:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class AccessModel(Protocol):
    """A pattern, ready to be asked."""

    groups: int
    block_size: int

    def reads(self, sequence: int, context_tokens: int) -> Reads:
        """Pages that the step with this context reads, of ceil(context_tokens / block_size) in each group."""

    def known(self, sequence: int, context_tokens: int) -> Reads:
        """The part of `reads` that follows from the length alone: what an engine can plan before the step runs."""


class AccessConfig(Protocol):
    """The part of a scenario that names a pattern."""

    def build(self, groups: int, block_size: int, seed: int) -> AccessModel:
        """Make the model for `groups` groups of layers; `seed` is any integer of 64 bits."""


def num_blocks(context_tokens: int, block_size: int) -> int:
    """Blocks that hold the context."""
    return -(-context_tokens // block_size)
