"""A transfer of KV between tiers: what an allocator asks of whoever drives its engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Route = Literal["load", "offload", "copy", "disk_load", "disk_store"]


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes that have to move.

    owner      in whose name: offload, reload, swap_out, swap_in, write_back, demote, prefetch, demand, copy
    route      load: host memory to HBM; offload: HBM to host memory; copy: within HBM; disk_load: disk over host
               memory to HBM; disk_store: host memory to disk
    num_bytes  of one GPU; with tensor parallelism each moves as many
    blocking   whether the next step waits for its end; may become true while it is on its way
    payload    the allocator's own, handed back when the transfer has landed
    """

    owner: str
    route: Route
    num_bytes: int
    blocking: bool = False
    payload: Any = None
