"""A prefix cache alone: one cache of a number of blocks, requests one after the other, nothing held, no timing.

What is a hit:

    per block     each block of a prompt is one access, in order: it is a hit if it is resident at that moment; else
                  it comes in, for exactly one victim if the cache is full
    leading run   of a prompt, the blocks from the first on that are all resident when the request begins, before
                  anything is touched: what an engine can reuse
    tokens        those of the leading run, at most the prompt's

With `tail_first` the resident blocks of a prompt are released from the last to the first once all have been used, as
engines do when a request ends, so that the tail of a prefix goes before its head. This renews recency in that order
and counts no use.

Every id counts as it is in the trace, that of a partly filled last block too; `workloads.expand.expand_hashes` makes
those unshareable, as they are in engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.kv.eviction.decision import Eviction, EvictionConfig
from sim.kv.eviction.ttl import Ttl
from sim.kv.replay.block_accesses import BlockAccesses
from workloads.errors import ConfigError


class Hits(NamedTuple):
    """Blocks hit one by one, blocks hit in leading runs, and the tokens of these."""

    per_block: int
    leading_run: int
    tokens: int


def replay(
    accesses: BlockAccesses, config: EvictionConfig, capacity: int, *, tail_first: bool = False
) -> Hits:
    """Replay a trace on a cache of `capacity` blocks under an eviction policy."""
    if capacity < 1:
        raise ConfigError(f"capacity: {capacity} is not a number of blocks; give at least 1")
    if accesses.now_ns is None and isinstance(config, Ttl):
        raise ConfigError(
            "eviction: ttl counts seconds, and the trace has no arrival times; give another policy"
        )
    bounds = accesses.offsets.tolist()
    times = [0] * (len(bounds) - 1) if accesses.now_ns is None else accesses.now_ns.tolist()
    everything, tokens = accesses.blocks.tolist(), accesses.tokens.tolist()
    cache = BlockCache(config.build(capacity, everything), capacity)
    hits = run_hits = token_hits = 0
    for now_ns, begin, end in zip(times, bounds, bounds[1:], strict=False):
        blocks = everything[begin:end]
        cache.expire(now_ns)
        run = cache.leading_run(blocks)
        run_hits += run
        token_hits += sum(tokens[begin : begin + run])
        hits += cache.use(blocks, now_ns)
        if tail_first:
            cache.release_tail_first(blocks, now_ns)
    return Hits(hits, run_hits, token_hits)


class BlockCache:
    """The resident blocks, of which nobody holds any."""

    def __init__(self, policy: Eviction, capacity: int) -> None:
        self.resident: set[int] = set()
        self._policy = policy
        self._capacity = capacity

    def leading_run(self, blocks: Sequence[int], begin: int = 0) -> int:
        """Return how many of the blocks, from `begin` on without a gap, are resident."""
        resident = self.resident
        for place in range(begin, len(blocks)):
            if blocks[place] not in resident:
                return place - begin
        return len(blocks) - begin

    def expire(self, now_ns: int) -> None:
        """Let go what must not be hit any more."""
        if gone := self._policy.expired(now_ns):
            self._policy.removed(gone)
            self.resident.difference_update(gone)

    def use(self, blocks: Sequence[int], now_ns: int) -> int:
        """Use the blocks of a prompt in order, taking in those that are missing; returns how many were resident."""
        hits = place = 0
        while place < len(blocks):
            if run := self.leading_run(blocks, place):
                end = place + run
                self._policy.accessed(blocks[place:end], range(place, end), now_ns)
                hits += run
            else:
                end = place + 1
                self._take_in(blocks[place], place, now_ns)
            place = end
        return hits

    def _take_in(self, block: int, position: int, now_ns: int) -> None:
        if len(self.resident) >= self._capacity:
            victims = self._policy.victims(1)
            self._policy.removed(victims)
            self.resident.difference_update(victims)
        self.resident.add(block)
        self._policy.inserted((block,), (position,), now_ns)

    def release_tail_first(self, blocks: Sequence[int], now_ns: int) -> None:
        """Hold what is resident of a prompt and let it go, the last block first."""
        there = [block for block in reversed(dict.fromkeys(blocks)) if block in self.resident]
        self._policy.held(there)
        self._policy.released(there, now_ns)
