"""Allocators whose blocks may move to another pool: each has places for the most blocks it may ever have.

A place without a block counts as held, by nobody. A block that moves is one that no sequence holds; what a prefix
cache had in it is forgotten, the first to be used again first.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sim.errors import InvariantError
from sim.kv.allocators.cached_paged import CachedHolding, CachedPagedAllocator
from sim.kv.allocators.decision import NO_BLOCKS, Contents
from sim.kv.allocators.evicting_paged import EvictingPagedAllocator
from sim.kv.allocators.paged import PagedAllocator, PagedHolding
from sim.kv.eviction.decision import Eviction

Runs = list[tuple[int, int]]


class LendingPagedAllocator(PagedAllocator):
    """Blocks as counts. `runs` are the ids of free blocks, one list for all pools: a count moves, not an id."""

    def __init__(self, num_blocks: int, block_size: int, runs: Runs) -> None:
        super().__init__(num_blocks, block_size)
        self._free_runs = runs

    @property
    def present_blocks(self) -> int:
        """Blocks that are there, held or free."""
        return self.num_blocks

    def part_with(self, count: int) -> Contents:
        """Give up free blocks, which must be there; returns their ids."""
        self.num_blocks -= count
        self._free -= count
        return np.full(count, -1, dtype=np.int64)

    def take_in(self, ids: Contents) -> None:
        """Get free blocks."""
        self.num_blocks += ids.size
        self._free += ids.size

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        self._check_counts(list(holdings))


class _Places(CachedPagedAllocator):
    """Moves blocks of a prefix cache; `_ids` names the block in each place, -1 for none."""

    def settle(self, ids: Contents) -> None:
        """Before anything else: so many of the places have a block."""
        self._ids = np.full(self.num_blocks, -1, dtype=np.int64)
        self._ids[: ids.size] = ids
        self._empty = np.arange(ids.size, self.num_blocks)
        self._queue.remove(self._empty)
        self._holders[self._empty] = 1
        self._free -= self._empty.size

    @property
    def present_blocks(self) -> int:
        return self.num_blocks - int(self._empty.size)

    @property
    def used_blocks(self) -> int:
        return self.present_blocks - self._free

    def memory(self) -> tuple[int, int, int, int]:
        return self.used_blocks, self.stored_tokens, self._free, self.cached_blocks

    def part_with(self, count: int) -> Contents:
        places = self._take(count)
        ids = self._ids[places]
        self._ids[places] = -1
        self._empty = np.concatenate([self._empty, places])
        return ids

    def take_in(self, ids: Contents) -> None:
        places, self._empty = self._empty[: ids.size], self._empty[ids.size :]
        self._ids[places] = ids
        self._holders[places] = 0
        self._give_up(places)
        self._free += ids.size

    def block_table(self, holding: PagedHolding) -> list[int]:
        return self._ids[super().block_table(holding)].tolist()

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        if not np.array_equal(np.flatnonzero(self._ids < 0), np.sort(self._empty)):
            raise InvariantError("places without a block do not match the ids")
        nobody = CachedHolding(NO_BLOCKS)
        nobody.slots, nobody.blocks = self._empty, self._empty.size
        super().check_integrity([*holdings, nobody])


class LendingCachedAllocator(_Places):
    """A prefix cache in the engine's order."""

    def __init__(self, places: int, block_size: int, ids: Contents) -> None:
        super().__init__(places, block_size)
        self.settle(ids)


class LendingEvictingAllocator(_Places, EvictingPagedAllocator):
    """A prefix cache under a policy."""

    def __init__(self, places: int, block_size: int, ids: Contents, policy: Eviction) -> None:
        EvictingPagedAllocator.__init__(self, places, block_size, policy)
        self.settle(ids)
