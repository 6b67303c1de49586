"""Everything said is repeated: one chain a session, whose blocks the next turn finds again."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from workloads.context.talk import Contexts, Talk


class Full(BaseModel):
    """The prompt of a turn repeats everything said before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["full"] = "full"

    def contexts(self, talk: Talk) -> Contexts:
        nothing = np.zeros_like(talk.new)
        return Contexts(talk.first, nothing, nothing)
