"""Which KV pages are fetched before they are needed. One policy a file: its config, its decision, its build.

Most fetch pages that decode steps read. `session` is another matter: it brings back prefix blocks that a session's
next turn will want, when that turn is expected and not with steps, and belongs to the allocator that has tiers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.kv.prefetch.attention_weighted import AttentionWeighted
from sim.kv.prefetch.none import NoPrefetch
from sim.kv.prefetch.oracle import Oracle
from sim.kv.prefetch.scheduled import Scheduled
from sim.kv.prefetch.session import Session
from sim.kv.prefetch.stride import Stride

AnyPrefetch = Annotated[
    NoPrefetch | Stride | AttentionWeighted | Scheduled | Oracle | Session, Field(discriminator="name")
]
