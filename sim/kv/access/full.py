"""Full attention: a step reads the whole context in every layer."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.kv.access.reads import Reads, num_blocks


class Full(BaseModel):
    """Read every page."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["full"] = "full"

    def build(self, groups: int, block_size: int, seed: int) -> FullAccess:  # noqa: ARG002  nothing is random here
        return FullAccess(groups, block_size)


class FullAccess:
    """All pages weigh alike: what attention makes of them decides nothing here."""

    def __init__(self, groups: int, block_size: int) -> None:
        self.groups = groups
        self.block_size = block_size

    def reads(self, sequence: int, context_tokens: int) -> Reads:  # noqa: ARG002  all sequences read alike
        blocks = num_blocks(context_tokens, self.block_size)
        return Reads.of_mask(np.ones((self.groups, blocks), dtype=np.bool_))

    known = reads
