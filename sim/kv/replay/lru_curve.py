"""How many hits an LRU cache has at every capacity, from one pass over the accesses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.kv.replay.block_accesses import BlockAccesses
from sim.kv.replay.prefix_replay import Hits
from sim.kv.replay.stack_distance import last_uses, stack_distances
from workloads.trace import Int64


@dataclass(frozen=True, eq=False)
class LruCurve:
    """Entry c of each array is for a cache of c blocks; the last one for all larger ones too.

    valid_from  the smallest capacity for which this is what a replay gives
    """

    per_block: Int64
    leading_run: Int64
    tokens: Int64
    valid_from: int = 0

    def at(self, capacity: int) -> Hits:
        """Return the hits of a cache of so many blocks, at least `valid_from`."""
        at = min(capacity, self.per_block.size - 1)
        return Hits(int(self.per_block[at]), int(self.leading_run[at]), int(self.tokens[at]))

    @property
    def infinite(self) -> Hits:
        """The hits of a cache that never evicts."""
        return self.at(self.per_block.size)

    def capacity_for(self, share: float) -> int:
        """Return the fewest blocks with which this share of the infinite cache's hits per block is reached."""
        wanted = math.ceil(share * int(self.per_block[-1]) - 1e-9)  # 0.9 x 10 is 9, whatever floats say
        return int(np.searchsorted(self.per_block, wanted))


def lru_curve(accesses: BlockAccesses) -> LruCurve:
    """Replay an LRU cache of every capacity at once; equal to `replay` with the policy `lru` at each.

    Leading runs come from the same distances. Block j of a prompt is within the leading run of a cache of C blocks if
    it and all blocks before it were resident when the request began, that is if their greatest distance *then* is
    below C. The greatest distance at the time of use is the same: the block of the prompt that was unused for longest
    is the deepest of the stack at both times, since nothing before it in the prompt can have been deeper.
    """
    return _curve(accesses, last_uses(accesses.blocks))


def tail_first_curve(accesses: BlockAccesses) -> LruCurve | None:
    """Do the same for prompts that are released from the tail; None where a prompt has a block twice.

    A prompt then leaves its blocks as a use from the last to the first would, provided that all of them are still
    there: so the curve is valid for caches that hold the longest prompt.
    """
    flipped = _flipped(accesses)
    last = last_uses(accesses.blocks[flipped])[flipped]
    if (last >= accesses.starts).any():
        return None
    return _curve(accesses, last, int(np.diff(accesses.offsets).max(initial=0)))


def _curve(accesses: BlockAccesses, last: Int64, valid_from: int = 0) -> LruCurve:
    distance = stack_distances(last)
    depth = _greatest_so_far(distance, accesses)
    size = 2 + int(distance[distance < len(accesses)].max(initial=-1))  # depths are distances too
    return LruCurve(
        per_block=_cumulative(distance, None, size),
        leading_run=_cumulative(depth, None, size),
        tokens=_cumulative(depth, accesses.tokens, size),
        valid_from=valid_from,
    )


def _flipped(accesses: BlockAccesses) -> Int64:
    """Return the places of all accesses with each request's in reverse; its own inverse."""
    counts = np.diff(accesses.offsets)
    last = np.repeat(accesses.offsets[1:], counts) - 1
    return last - accesses.positions


def _greatest_so_far(distance: Int64, accesses: BlockAccesses) -> Int64:
    """Return the greatest distance of each block and those before it in its request."""
    step = len(accesses) + 1  # more than any distance: a later request starts above all before
    request = np.repeat(np.arange(accesses.offsets.size - 1), np.diff(accesses.offsets))
    return np.maximum.accumulate(distance + request * step) - request * step


def _cumulative(distance: Int64, weights: Int64 | None, size: int) -> Int64:
    """Return, for 0 <= c < size, the sum of the weights of all distances below c."""
    near = distance < size - 1
    counts = np.bincount(distance[near], None if weights is None else weights[near], minlength=size - 1)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
