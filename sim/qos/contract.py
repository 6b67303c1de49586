"""What each tier of tenants is promised, and how far it may go beyond.

    guarantee   what a tier always gets: its share; where shares sum to more than one, in proportion to them
    level       up to where it may borrow what others leave, as of right: its share
    most        up to where it may borrow with tokens of its bucket: burst x share

Under hard isolation all three are the same. Blocks and seats (`max_num_seqs`) are counted so; prompt tokens of a
step go to the tiers that have prompts in proportion to their shares (`sim.engine.waiting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from sim.kv.eviction.decision import EvictionConfig
from sim.qos.token_bucket import TokenBucket


@dataclass(frozen=True)
class Tier:
    """A tier of service.

    refill_blocks_per_s  tokens of the bucket, each good for one borrowed block; None: borrowing has no rate
    connections          most requests in flight, over the whole cluster; None: no limit
    ttl_s                how long a cached block of the tier can be hit after its last use; None: no limit
    eviction             which of its cached blocks go first; None: as everywhere
    plain_order          the engine's own order, whatever is in use elsewhere
    """

    name: str
    share: Fraction
    burst: Fraction = Fraction(1)
    refill_blocks_per_s: float | None = None
    connections: int | None = None
    ttl_s: float | None = None
    eviction: EvictionConfig | None = None
    plain_order: bool = False


class Amounts(NamedTuple):
    """Of a resource that comes in units: what a tier is promised, and what it may come to."""

    guarantee: int
    level: int
    most: int


@dataclass(frozen=True)
class Contracts:
    """All tiers; `tier_of` names that of each tenant, by the codes of a trace."""

    hard: bool
    tiers: tuple[Tier, ...]
    tier_of: tuple[int, ...]

    def amounts(self, total: int, *, least: int = 0) -> list[Amounts]:
        """Of `total` units, for each tier, rounded down but to no less than `least`."""
        whole = max(sum(tier.share for tier in self.tiers), Fraction(1))
        found = []
        for tier in self.tiers:
            guarantee = max(int(tier.share / whole * total), least)
            if self.hard:
                found.append(Amounts(guarantee, guarantee, guarantee))
            else:
                level = max(int(tier.share * total), guarantee)
                found.append(Amounts(guarantee, level, max(int(tier.share * tier.burst * total), level)))
        return found

    def bucket(self, tier: Tier, amounts: Amounts) -> TokenBucket | None:
        """As deep as the tier may go beyond its level; None where nothing bounds the rate."""
        depth = amounts.most - amounts.level
        if tier.refill_blocks_per_s is None or not depth:
            return None
        return TokenBucket(depth, tier.refill_blocks_per_s)

    def lanes_of(self, tenants: Sequence[int]) -> list[int]:
        """The tier of each request, by its tenant."""
        return [self.tier_of[tenant] for tenant in tenants]

    @property
    def weights(self) -> list[float]:
        """In which proportion tiers share what is given to whoever comes."""
        return [float(tier.share) for tier in self.tiers]
