"""The pools of one engine, from contracts and what a scenario says of KV memory."""

from __future__ import annotations

import numpy as np

from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.kv.allocators.decision import Contents
from sim.kv.allocators.pooled import CachedPooledAllocator, PooledAllocator
from sim.kv.build import KvSetup
from sim.kv.eviction.decision import Eviction
from sim.kv.eviction.expiring import ExpiringEviction
from sim.kv.eviction.lru import Lru
from sim.kv.pools.lending import LendingCachedAllocator, LendingEvictingAllocator, LendingPagedAllocator, Runs
from sim.kv.pools.pool import Pool, PoolBlocks
from sim.qos.contract import Contracts, Tier


def build_pools(
    setup: KvSetup, contracts: Contracts, table: RequestTable, max_num_seqs: int
) -> PooledAllocator:
    """Make the KV memory of one engine, which will serve requests of `table`."""
    total = setup.usable_blocks
    amounts = contracts.amounts(total)
    seats = contracts.amounts(max_num_seqs, least=1)
    if sum(seat.guarantee for seat in seats) > max_num_seqs:
        raise ConfigError(
            f"engine.max_num_seqs: {max_num_seqs} leaves no seat for each of the {len(seats)} tiers of qos; "
            "raise it, or make shares more alike"
        )
    lanes = contracts.lanes_of(table.tenant)
    runs: Runs = [(0, total)]
    pools: list[Pool] = []
    first = 0
    for lane, (tier, blocks) in enumerate(zip(contracts.tiers, amounts, strict=True)):
        if not blocks.guarantee:
            raise ConfigError(
                f"qos.tiers.{tier.name}.share: {float(tier.share):g} of {total} KV blocks is not one block; "
                "raise it"
            )
        ids = np.arange(first, first + blocks.guarantee)
        first += blocks.guarantee
        memory: PoolBlocks
        if setup.prefix_caching:
            own = [index for index in range(len(table)) if lanes[index] == lane]
            memory = _prefix_cache(setup, tier, table, own, blocks.most, ids)
        else:
            memory = LendingPagedAllocator(blocks.guarantee, setup.block_size, runs)
        pools.append(Pool(memory, blocks, seats[lane], contracts.bucket(tier, blocks)))
    kind = CachedPooledAllocator if setup.prefix_caching else PooledAllocator
    return kind(total, setup.block_size, pools, max_num_seqs, np.arange(first, total))


def _prefix_cache(
    setup: KvSetup, tier: Tier, table: RequestTable, own: list[int], places: int, ids: Contents
) -> LendingCachedAllocator | LendingEvictingAllocator:
    """The cache of a tier, whose requests are `own`."""
    size = setup.block_size
    memory: LendingCachedAllocator | LendingEvictingAllocator
    policy = _eviction(setup, tier, table, own, int(ids.size))
    if policy is None:
        memory = LendingCachedAllocator(places, size, ids)
    else:
        memory = LendingEvictingAllocator(places, size, ids, policy)
    if setup.warm_cache:
        for index in own:
            tokens = table.input_tokens[index] + table.output_tokens[index] - 1
            memory.warm_up(table.contents(index, size), tokens)
    return memory


def _eviction(
    setup: KvSetup, tier: Tier, table: RequestTable, own: list[int], num_blocks: int
) -> Eviction | None:
    """In which order cached blocks go; None: that of the engine."""
    config = None if tier.plain_order else tier.eviction or setup.eviction
    if config is None and tier.ttl_s is None:
        return None
    passes = 2 if setup.warm_cache else 1  # an oracle must know the warming requests too
    uses = passes * [content for i in own for content in table.contents(i, setup.block_size).tolist()]
    order = (config or Lru()).build(num_blocks, uses)
    return order if tier.ttl_s is None else ExpiringEviction(order, tier.ttl_s)
