"""The tiers below an engine's HBM, as a scenario and a machine give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sim.kv.eviction.decision import EvictionConfig
from sim.kv.eviction.lru import Lru
from sim.kv.tiers.lower import LowerTiers
from sim.kv.tiers.reload import Reload
from sim.kv.tiers.store import TierStore
from sim.kv.tiers.swapping import Swapping

WritePolicy = Literal["through", "back"]


@dataclass(frozen=True)
class TierSetup:
    """Tiers of each engine. Blocks are those of the engine: a block below has the same part on every GPU."""

    host_blocks: int
    disk_blocks: int
    reload: Reload
    swapping: Swapping
    write: WritePolicy = "through"
    eviction: EvictionConfig = field(default_factory=Lru)

    def stores(self) -> LowerTiers:
        """Make the lower tiers of one engine, empty."""
        host = TierStore(self.host_blocks, self.eviction.build(self.host_blocks))
        if not self.disk_blocks:
            return LowerTiers(host)
        return LowerTiers(host, TierStore(self.disk_blocks, self.eviction.build(self.disk_blocks)))
