"""Where steps read: a histogram over layer groups and the distance from the end [O4]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sim.kv.access.reads import AccessModel, Float64, Int64, Reads, num_blocks

_BINS = 32  # up to 2^31 blocks back


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Reads by group and distance. The distance of a page is that from the page of the query, times the block size.

    from_tokens  (bins,) where each bin starts: 0, then block_size doubled again and again
    pages        (groups, bins) pages read
    mass         (groups, bins) their attention mass, summed over the steps
    """

    from_tokens: Int64
    pages: Int64
    mass: Float64

    def reads_beyond(self, tokens: int) -> Float64:
        """By group, the share of reads in bins that start at `tokens` or later."""
        beyond = self.pages[:, self.from_tokens >= tokens].sum(axis=1)
        return beyond / np.maximum(self.pages.sum(axis=1), 1)


class HeatCounter:
    """Adds up reads, step by step."""

    def __init__(self, groups: int, block_size: int) -> None:
        self._groups = groups
        self._block_size = block_size
        self._pages = np.zeros((groups, _BINS), dtype=np.int64)
        self._mass = np.zeros((groups, _BINS))

    def add(self, reads: Reads, last_block: Int64 | int) -> None:
        """Count reads of one step; `last_block` is that of the query, for all reads or for each."""
        distance = last_block - reads.block
        place = (
            reads.group * _BINS + np.frexp(distance.astype(np.float64))[1]
        )  # 0, 1, 2-3, 4-7, ... blocks back
        size = self._groups * _BINS
        self._pages += np.bincount(place, minlength=size).reshape(self._groups, _BINS)
        self._mass += np.bincount(place, reads.weight, minlength=size).reshape(self._groups, _BINS)

    def plus(self, other: HeatCounter) -> HeatCounter:
        """Both together."""
        both = HeatCounter(self._groups, self._block_size)
        both._pages = self._pages + other._pages
        both._mass = self._mass + other._mass
        return both

    def map(self) -> HeatMap:
        """Everything so far, cut after the last bin with a read."""
        used = np.flatnonzero(self._pages.any(axis=0))
        bins = int(used[-1]) + 1 if used.size else 1
        starts = np.concatenate([[0], self._block_size * 2 ** np.arange(bins - 1)]).astype(np.int64)
        return HeatMap(starts, self._pages[:, :bins].copy(), self._mass[:, :bins].copy())


def heat_map(access: AccessModel, steps: Iterable[tuple[int, int]]) -> HeatMap:
    """Of the reads of (sequence, context tokens) pairs."""
    counter = HeatCounter(access.groups, access.block_size)
    for sequence, context_tokens in steps:
        last = num_blocks(context_tokens, access.block_size) - 1
        counter.add(access.reads(sequence, context_tokens), last)
    return counter.map()
