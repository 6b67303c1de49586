"""The section `kv_access`: KV of running sequences in host memory, of which HBM holds a part.

The engine's KV pool (its blocks, by whatever number) then stands in host memory, and HBM caches its pages. What a
step reads is the pattern's matter: attention is priced by the tokens that it reads.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim.errors import ConfigError
from sim.kv.access import AnyAccess
from sim.kv.paging.host_paging import HostPaging
from sim.kv.prefetch.decision import PrefetchConfig
from sim.memory import KvCapacity
from sim.model import ModelSpec
from sim.scenario.named import named

_GIB = 2**30
_RESIDENT = 0.5


class KvAccessConfig(BaseModel):
    """KV in host memory with a page cache in HBM, and which pages decode steps read."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )

    pattern: Annotated[AnyAccess | None, BeforeValidator(named)] = None
    """What a decode step reads: full, sliding_window, top_k, recorded; by default KV is in HBM, all of it."""
    resident: float | None = Field(None, strict=True, gt=0, le=1)
    """Share of the KV pool that HBM holds; 0.5 unless resident_gib is set."""
    resident_gib: float | None = Field(None, strict=True, gt=0, le=1e6)
    """The same as GiB of each GPU."""
    layer_groups: int = Field(4, strict=True, ge=1, le=1024)
    """Groups of successive layers that are paged together: a page is a KV block in one of them."""

    @model_validator(mode="after")
    def _every_field_acts(self) -> KvAccessConfig:
        if self.resident is not None and self.resident_gib is not None:
            raise ValueError("give either resident or resident_gib")
        if self.pattern is None and self.model_fields_set - {"pattern"} and self != KvAccessConfig():
            raise ValueError("acts with a pattern: set pattern to full, sliding_window, top_k or recorded")
        return self

    def build(
        self,
        prefetch: PrefetchConfig,
        model: ModelSpec,
        capacity: KvCapacity,
        seed: np.random.SeedSequence,
        replicas: int,
    ) -> list[HostPaging] | None:
        """Make the paging of each replica; None where KV is in HBM."""
        if self.pattern is None:
            return None
        if model.num_layers % self.layer_groups:
            divisors = [str(n) for n in range(1, model.num_layers + 1) if model.num_layers % n == 0]
            raise ConfigError(
                f"kv_access.layer_groups: {self.layer_groups} does not divide the {model.num_layers} layers of "
                f"{model.name}; take one of {', '.join(divisors)}"
            )
        if model.num_window_layers:
            raise ConfigError(
                f"kv_access.pattern: {model.name} has sliding windows of its own in {model.num_window_layers} layers; "
                "take a model without, and a pattern with full_groups"
            )
        page_bytes = capacity.block_bytes // self.layer_groups
        pages = self._pages(capacity, page_bytes)
        access = self.pattern.build(
            self.layer_groups, capacity.block_size, int(seed.generate_state(1, np.uint64)[0])
        )
        return [
            HostPaging(access, prefetch.build(access), capacity=pages, page_bytes=page_bytes)
            for _ in range(replicas)
        ]

    def _pages(self, capacity: KvCapacity, page_bytes: int) -> int:
        if self.resident_gib is not None:
            field, pages = "resident_gib", int(self.resident_gib * _GIB) // page_bytes
        else:
            share = self.resident or _RESIDENT
            field, pages = "resident", int(share * capacity.usable_blocks * self.layer_groups)
        if not pages:
            raise ConfigError(f"kv_access.{field}: a page takes {page_bytes / _GIB:.3g} GiB, and none fits")
        taken = (
            capacity.weight_bytes + capacity.activation_bytes + capacity.graph_bytes + capacity.context_bytes
        )
        if pages * page_bytes > capacity.budget_bytes - taken:
            raise ConfigError(
                f"kv_access.{field}: {pages * page_bytes / _GIB:.1f} GiB of pages do not fit in the "
                f"{max(capacity.budget_bytes - taken, 0) / _GIB:.1f} GiB that each GPU has for KV"
            )
        return pages
