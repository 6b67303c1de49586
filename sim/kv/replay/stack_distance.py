"""LRU stack distances: one pass over the accesses answers for every capacity at once.

The stack distance of an access is the number of different blocks used since the last use of its block. An LRU cache
of C blocks holds just the C blocks used last, so the access is a hit if and only if its distance is below C (Mattson,
Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970). This needs
inclusion: whatever a small cache holds, a larger one holds too. FIFO has no such order (a larger cache may even hit
less: Belady, Nelson, Shedler, CACM 12(6), 1969). Nor has LFU with uses counted since insertion, since a block's
count depends on when it was evicted last and so on the capacity; the same goes for length_aware and lru_lfu. Those
take one pass a capacity.

The counting is done for all accesses together, with NumPy. With `last[t]` the previous access of the same block, the
distance is t - last[t] - 1 less the repeats in between; a repeat q in between is one with last[q] > last[t], and
since last[q] > last[t] implies q > last[t], these are the q < t with last[q] > last[t].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.trace import Int64


def last_uses(blocks: Int64) -> Int64:
    """Return the place of the previous access of the same block, -1 where there is none."""
    order = np.argsort(blocks, kind="stable")
    last = np.full(blocks.size, -1)
    again = np.flatnonzero(np.diff(blocks[order]) == 0)
    last[order[again + 1]] = order[again]
    return last


def stack_distances(last: Int64) -> Int64:
    """Return the LRU stack distance of every access.

    A first access gets the number of accesses, which no distance reaches.
    """
    distance = np.full(last.size, last.size)
    repeats = np.flatnonzero(last >= 0)
    since = last[repeats]
    distance[repeats] = repeats - since - 1 - larger_before(_ranks(since, last.size))
    return distance


def _ranks(distinct: Int64, bound: int) -> Int64:
    """Return 0, 1, 2, ... in the order of values that are all different and within [0, bound)."""
    seen = np.zeros(bound, dtype=np.int64)
    seen[distinct] = 1
    return (np.cumsum(seen) - 1)[distinct]


def larger_before(permutation: Int64) -> Int64:
    """Return, for each element of a permutation of 0 ... n - 1, how many larger ones stand before it.

    Radix sort from the highest bit, counting on the way. Before the round for a bit, the elements stand in groups that
    agree in all higher bits, in the order given within a group; being a permutation, the group with the higher bits h
    starts at place h. An element with the bit 0 has before it, larger by this bit, the ones of its group so far.
    """
    size = permutation.size
    kind: np.dtype[np.signedinteger] = np.dtype(np.int32 if size < 2**30 else np.int64)
    value: NDArray[np.signedinteger] = permutation.astype(kind)
    larger = np.zeros(size, dtype=kind)  # by value
    ones = np.zeros(size + 1, dtype=kind)  # how many have the bit, up to a place
    place = np.arange(size, dtype=kind)
    for bit in reversed(range(max(size - 1, 0).bit_length())):
        has = (value >> bit) & 1
        np.cumsum(has, out=ones[1:])
        group = value >> (bit + 1) << (bit + 1)
        ones_so_far = ones[:-1] - ones[group]
        larger[value] += ones_so_far * (1 - has)
        target = np.where(has, group + (1 << bit) + ones_so_far, place - ones_so_far)
        moved = np.empty_like(value)
        moved[target] = value
        value = moved
    return larger[permutation].astype(np.int64)
