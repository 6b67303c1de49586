"""Only the latest turns are repeated: once the window moves, nothing behind the system prompt is found again."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from workloads.bounds import MOST_REQUESTS, Integral, Tokens
from workloads.context.talk import Contexts, Int64, Talk


class SlidingWindow(BaseModel):
    """The prompt of a turn repeats the latest turns that fit the window, whole ones; of two limits both hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["sliding_window"] = "sliding_window"
    window_turns: Annotated[int, Field(strict=True, ge=0, le=MOST_REQUESTS), Integral] | None = None
    """Most earlier turns, question and answer, that a prompt repeats."""
    window_tokens: Tokens | None = None
    """Most tokens of earlier turns that a prompt repeats; system prompt and new tokens do not count."""

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if self.window_turns is None and self.window_tokens is None:
            raise PydanticCustomError(
                "context", "give window_turns or window_tokens; with neither it is full"
            )
        return self

    def contexts(self, talk: Talk) -> Contexts:
        own: Int64 = np.arange(talk.new.size)
        start = talk.first
        if self.window_turns is not None:
            start = np.maximum(start, own - self.window_turns)
        if self.window_tokens is not None:
            before = talk.said_before
            start = np.maximum(start, np.searchsorted(before, before - self.window_tokens))
        nothing = np.zeros_like(own)
        return Contexts(start, nothing, nothing)
