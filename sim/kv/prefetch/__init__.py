"""Which KV pages are fetched before they are needed. One policy a file: its config, its decision, its build.

These fetch pages that decode steps read. Prefix blocks that a session's next turn will want are another matter: they
move between tiers when a turn is expected, not with steps, and belong to the allocator that has tiers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.kv.prefetch.attention_weighted import AttentionWeighted
from sim.kv.prefetch.none import NoPrefetch
from sim.kv.prefetch.oracle import Oracle
from sim.kv.prefetch.scheduled import Scheduled
from sim.kv.prefetch.stride import Stride

AnyPrefetch = Annotated[
    NoPrefetch | Stride | AttentionWeighted | Scheduled | Oracle, Field(discriminator="name")
]
