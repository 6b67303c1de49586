"""What is said in sessions, and what of it the prompts repeat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Talk:
    """All turns, session by session; one entry a turn, lengths in tokens.

    session  code of its session, ascending
    new      what the user says
    output   what is answered
    """

    session: Int64
    new: Int64
    output: Int64
    system_tokens: int

    @cached_property
    def first(self) -> Int64:
        """Position of the first turn of the same session."""
        first: Int64 = np.searchsorted(self.session, self.session)
        return first

    @cached_property
    def said_before(self) -> Int64:
        """Everything said before a turn, by earlier sessions too: differences count within a session."""
        said = self.new + self.output
        before: Int64 = np.cumsum(said) - said
        return before


@dataclass(frozen=True, eq=False)
class Contexts:
    """What stands between the system prompt and the new words of each turn; one entry a turn.

    start       position of the first turn that is repeated word for word, up to the turn before (own position: none)
    head        tokens in front of it that stand for what was said earlier: a summary
    summarised  tokens behind the system prompt that a request of its own summarises before this turn; 0: no request
    """

    start: Int64
    head: Int64
    summarised: Int64

    def prompt_tokens(self, talk: Talk) -> Int64:
        """Length of each prompt, the system prompt included."""
        before = talk.said_before
        tokens: Int64 = talk.system_tokens + self.head + before - before[self.start] + talk.new
        return tokens

    @cached_property
    def chain(self) -> Int64:
        """Number of the chain of each turn: prompts of one chain are beginnings of one text.

        Behind the system prompt, prompts of two chains differ from the first token on: another turn comes first there,
        or a summary.
        """
        codes: Int64 = np.cumsum(np.diff(self.start, prepend=-1) != 0) - 1
        return codes


class ContextPolicy(Protocol):
    """Decides what a prompt repeats of its session."""

    def contexts(self, talk: Talk) -> Contexts:
        """Go through the turns of every session; what a prompt repeats depends on its own session's past alone."""
        ...
