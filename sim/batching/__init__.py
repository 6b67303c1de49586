"""Batchers: which tokens a step may take. One policy a file: its config, its decision, its build."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.dynamic_chunked import DynamicChunked
from sim.batching.length_grouped import LengthGrouped
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch

AnyBatcher = Annotated[
    Chunked | Continuous | DynamicChunked | LengthGrouped | PrefixFirst | StaticBatch,
    Field(discriminator="name"),
]
