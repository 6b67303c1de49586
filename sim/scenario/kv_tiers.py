"""The section `kv_tiers`: host memory and disk below the prefix cache."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim.batching.decision import EngineLimits
from sim.cost import StepCost
from sim.errors import ConfigError
from sim.kv.eviction import AnyEviction
from sim.kv.eviction.lru import Lru
from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute
from sim.kv.tiers.reload import Reload
from sim.kv.tiers.setup import TierSetup
from sim.kv.tiers.swapping import Swapping
from sim.profile import Device
from sim.scenario.links import LinksConfig
from sim.scenario.named import named

_GIB = 2**30


class KvTiersConfig(BaseModel):
    """Tiers below HBM for the blocks of the prefix cache, like an offloading connector's."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )

    host_gib: float = Field(0.0, strict=True, ge=0, le=1e7)
    """Host memory for the KV of a replica, all its GPUs together (vLLM's kv_offloading_size); 0: none."""
    disk_gib: float = Field(0.0, strict=True, ge=0, le=1e7)
    """Disk for what host memory evicts, likewise; needs links.disk, its bandwidth."""
    write: Literal["through", "back"] = "through"
    """When full blocks are copied to host memory: as they are computed, or before they are overwritten."""
    reload: Literal["cheaper", "always", "never"] = "cheaper"
    """Whether what is found there is brought back; cheaper asks links and cost model what is faster."""
    preempt: Literal["recompute", "swap", "cheaper"] = "recompute"
    """What becomes of a preempted sequence's KV: computed again, swapped to host memory, or what is faster."""
    eviction: Annotated[AnyEviction, BeforeValidator(named)] = Lru()
    """Which blocks leave host memory first, and the disk; by default the least recently used in any tier."""

    @model_validator(mode="after")
    def _every_field_acts(self) -> KvTiersConfig:
        if not self.host_gib and self.model_dump(exclude_defaults=True):
            raise ValueError("acts with host memory: set host_gib")
        if self.reload == "never" and self.preempt != "recompute":
            raise ValueError(
                f"preempt: {self.preempt} leaves KV in host memory, and reload: never does not bring it back"
            )
        if self.eviction.name == "belady":
            raise ValueError(
                "eviction: belady must know all uses to come, and uses of lower tiers depend on time"
            )
        return self

    @property
    def routes(self) -> frozenset[str]:
        """Routes of `sim/links/machine.py` on which blocks move."""
        if not self.host_gib:
            return frozenset()
        routes = {"offload"} if self.reload == "never" else {"offload", "load"}
        if self.disk_gib:
            routes |= {"disk_store"} if self.reload == "never" else {"disk_store", "disk_load"}
        return frozenset(routes)

    def build(
        self,
        cost: StepCost,
        limits: EngineLimits,
        rates: Rates,
        *,
        block_bytes: int,
        gpus: int,
    ) -> TierSetup | None:
        """Make the tiers of engines; None where there are none. `block_bytes` are those of each of `gpus` GPUs."""
        if not self.host_gib:
            return None
        recompute = Recompute(cost, limits.max_num_batched_tokens)
        size = limits.block_size
        return TierSetup(
            host_blocks=self._blocks("host_gib", self.host_gib, block_bytes * gpus),
            disk_blocks=self._blocks("disk_gib", self.disk_gib, block_bytes * gpus) if self.disk_gib else 0,
            reload=Reload(self.reload, rates, recompute, size, block_bytes),
            swapping=Swapping(self.preempt, rates, recompute, size, block_bytes),
            write=self.write,
            eviction=self.eviction,
        )

    def rates(self, links: LinksConfig, device: Device) -> Rates:
        """Bandwidths of the links that blocks move over; ConfigError where the disk's is not given."""
        measured = links.bytes_per_s
        hbm = measured.get("hbm", device.hbm_bytes_per_s)
        disk = measured.get("disk")
        if self.disk_gib and disk is None:
            raise ConfigError(
                "kv_tiers.disk_gib: no profile knows the disk's bandwidth; give links.disk in GB/s"
            )
        return Rates(
            load_bytes_per_s=min(measured.get("pcie_h2d", device.pcie_bytes_per_s), hbm),
            offload_bytes_per_s=min(measured.get("pcie_d2h", device.pcie_bytes_per_s), hbm),
            disk_bytes_per_s=disk,
            latency_ns=round(links.latency_us * 1000),
        )

    @staticmethod
    def _blocks(field: str, gib: float, block_bytes: int) -> int:
        blocks = int(gib * _GIB) // block_bytes
        if not blocks:
            raise ConfigError(
                f"kv_tiers.{field}: {gib:g} holds no block, which takes {block_bytes / _GIB:.3g} GiB on all GPUs"
            )
        return blocks
