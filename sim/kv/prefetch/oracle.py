"""An oracle: it asks the access pattern itself what the next steps will read. No engine can; it is a bound."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.kv.access.reads import AccessModel
from sim.kv.prefetch.scheduled import Planner


class Oracle(BaseModel):
    """Fetch what the next steps will read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["oracle"] = "oracle"
    depth: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    """Steps ahead."""

    def build(self, access: AccessModel) -> Planner:
        return Planner(access.reads, self.depth)
