"""Which block a full cache gives up. One policy a file: its config, its decision, its build."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.kv.eviction.belady import Belady
from sim.kv.eviction.fifo import Fifo
from sim.kv.eviction.length_aware import LengthAware
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.lfu_perfect import LfuPerfect
from sim.kv.eviction.lru import Lru
from sim.kv.eviction.lru_lfu import LruLfu
from sim.kv.eviction.ttl import Ttl

AnyEviction = Annotated[
    Lru | Lfu | LfuPerfect | LruLfu | Fifo | Ttl | LengthAware | Belady, Field(discriminator="name")
]
