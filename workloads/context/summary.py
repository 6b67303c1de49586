"""A summary stands for the early turns: it breaks the chain once, and what follows it grows and is shared again."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from workloads.bounds import MOST_REQUESTS, Count, Integral, Tokens
from workloads.context.talk import Contexts, Int64, Talk


class Summary(BaseModel):
    """From time to time, what was said (an earlier summary included) is replaced by a summary of it.

    That happens before a turn, when one of the limits asks for it and there are turns to replace; a prompt whose kept
    turns alone are too long stays too long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["summary"] = "summary"
    context_tokens: Tokens | None = None
    """Summarise before a turn whose prompt would be longer than this."""
    summarise_every: Count | None = None
    """Summarise after so many turns since the session's start or its last summary."""
    keep_turns: Annotated[int, Field(strict=True, ge=0, le=MOST_REQUESTS), Integral] = 1
    """The latest turns, which stay word for word behind the summary."""
    summary_ratio: Annotated[float, Field(gt=0, le=1)] = 0.31
    """Tokens of a summary per token that it stands for; rounded, at least 1. An assumption, never a result."""
    summary_request: Annotated[bool, Field(strict=True)] = True
    """Whether making a summary costs what it costs: a request of its own in the session, whose prompt is the system
    prompt and what it stands for, and whose answer is the summary. It is sent when the turn is due, and the turn when
    it is done. It counts neither in num_requests nor in request_rate, so that policies are compared on the same turns.
    """

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if self.context_tokens is None and self.summarise_every is None:
            raise PydanticCustomError(
                "context", "give context_tokens or summarise_every; with neither it is full"
            )
        return self

    def contexts(self, talk: Talk) -> Contexts:
        """Turn by turn, all sessions at once: the longest sessions come first, and each turn has fewer of them."""
        firsts, counts = np.unique(talk.first, return_counts=True)
        by_length = np.argsort(-counts, kind="stable")
        firsts, counts = firsts[by_length], counts[by_length]
        before = talk.said_before
        start, head, summarised = talk.first.copy(), np.zeros_like(talk.new), np.zeros_like(talk.new)
        made = np.zeros_like(firsts)  # turns before the last summary, by session
        for turn in range(1, int(counts.max(initial=0))):
            own = firsts[: np.searchsorted(-counts, -turn)] + turn
            latest = start[own - 1]
            kept = np.maximum(own - self.keep_turns, latest)
            repeated = head[own - 1] + before[own] - before[latest]
            due = self._due(talk.system_tokens + repeated + talk.new[own], turn - made[: own.size])
            due &= kept > latest
            replaced = np.where(due, head[own - 1] + before[kept] - before[latest], 0)
            short = np.maximum(np.rint(self.summary_ratio * replaced), 1).astype(np.int64)
            start[own] = np.where(due, kept, latest)
            head[own] = np.where(due, short, head[own - 1])
            summarised[own] = replaced
            made[: own.size][due] = turn
        return Contexts(start, head, summarised if self.summary_request else np.zeros_like(summarised))

    def _due(self, prompt_tokens: Int64, turns_since: Int64) -> NDArray[np.bool_]:
        due = np.zeros(prompt_tokens.size, dtype=np.bool_)
        if self.context_tokens is not None:
            due |= prompt_tokens > self.context_tokens
        if self.summarise_every is not None:
            due |= turns_since >= self.summarise_every
        return due
