"""The KV memory of an engine, from what a scenario says of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.engine.request import RequestTable
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.allocators.decision import Allocator, AllocatorConfig
from sim.kv.allocators.evicting_paged import EvictingPagedAllocator
from sim.kv.allocators.paged import Paged
from sim.kv.allocators.tiered_paged import TieredEvictingPagedAllocator, TieredPagedAllocator
from sim.kv.eviction.decision import Eviction, EvictionConfig
from sim.kv.prefetch.session import Session
from sim.kv.tiers.prefetching import SessionPrefetch
from sim.kv.tiers.setup import TierSetup


@dataclass(frozen=True)
class KvSetup:
    """KV memory of each engine.

    usable_blocks   blocks that sequences may hold
    block_bytes     bytes of a block on each GPU
    eviction        which cached blocks go first; None: free blocks are used again in the engine's own order
    warm_cache      whether the prefix cache starts as after the same requests were served once before, in order
    tiers           KV below HBM, for the prefix cache
    prefetch        what to bring back from there before it is asked for
    """

    usable_blocks: int
    block_size: int
    max_model_len: int
    block_bytes: int = 0
    allocator: AllocatorConfig = field(default_factory=Paged)
    prefix_caching: bool = False
    eviction: EvictionConfig | None = None
    warm_cache: bool = False
    tiers: TierSetup | None = None
    prefetch: Session | None = None


def build_allocator(setup: KvSetup, table: RequestTable) -> Allocator:
    """Make the KV memory of one engine, which will serve requests of `table`."""
    if setup.prefix_caching:
        return _prefix_cache(setup, table)
    return setup.allocator.build(
        setup.usable_blocks, setup.block_size, setup.max_model_len, setup.block_bytes
    )


def _prefix_cache(setup: KvSetup, table: RequestTable) -> CachedPagedAllocator:
    blocks, size, tiers = setup.usable_blocks, setup.block_size, setup.tiers
    policies = [] if setup.eviction is None else [_policy(setup, setup.eviction, table)]
    allocator: CachedPagedAllocator
    if tiers is None:
        allocator = (
            EvictingPagedAllocator(blocks, size, *policies)
            if policies
            else CachedPagedAllocator(blocks, size)
        )
    else:
        kind = TieredEvictingPagedAllocator if policies else TieredPagedAllocator
        allocator = kind(blocks, size, tiers, *policies)
    if setup.warm_cache:
        for index in range(len(table)):
            tokens = table.input_tokens[index] + table.output_tokens[index] - 1
            allocator.warm_up(table.contents(index, size), tokens)
    if setup.prefetch is not None:
        assert isinstance(allocator, TieredPagedAllocator)
        expected = setup.prefetch.expectations()
        allocator.prefetch_with(
            SessionPrefetch(expected, table.session.__getitem__, table.arrival_ns.__getitem__)
        )
    return allocator


def _policy(setup: KvSetup, eviction: EvictionConfig, table: RequestTable) -> Eviction:
    passes = 2 if setup.warm_cache else 1  # an oracle must know the warming requests too
    uses = [content for i in range(len(table)) for content in table.contents(i, setup.block_size).tolist()]
    return eviction.build(setup.usable_blocks, passes * uses)
