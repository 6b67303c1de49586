"""The requests of sessions: their turns, and the summaries made between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from workloads.context.talk import ContextPolicy, Contexts, Int64, Talk
from workloads.trace import Turns


@dataclass(frozen=True, eq=False)
class SessionRequests:
    """One entry a request, session by session and in order within; a summary comes before its turn.

    turn     position of its turn in the talk; a summary's is that of the turn it is made for
    prompt, output   tokens
    chain    prompts of one chain are beginnings of one text behind the system prompt, those of two share none of it
    """

    turn: Int64
    session: Int64
    prompt: Int64
    output: Int64
    chain: Int64
    turns: Turns

    @classmethod
    def of(cls, talk: Talk, policy: ContextPolicy, gap_ns: Int64, *, waits: bool) -> Self:
        """What is sent for a talk; `gap_ns` is the thinking before each turn where it `waits` for the answer before.

        A turn waits for its summary in any case.
        """
        contexts = policy.contexts(talk)
        asked = np.flatnonzero(contexts.summarised)  # turns that a summary is made for
        at = np.arange(talk.new.size) + np.cumsum(contexts.summarised > 0)  # where each turn comes to stand
        calls = at[asked] - 1

        def merged(of_turns: Int64, of_calls: Int64) -> Int64:
            column = np.empty(at.size + calls.size, dtype=np.int64)
            column[at], column[calls] = of_turns, of_calls
            return column

        turn = merged(np.arange(at.size), asked)
        predecessor = merged(np.full(at.size, -1), np.full(calls.size, -1))
        if waits:
            predecessor = np.where(np.diff(talk.session[turn], prepend=-1) == 0, np.arange(turn.size) - 1, -1)
        predecessor[at[asked]] = calls
        think_ns = gap_ns[turn]
        think_ns[at[asked]] = 0
        return cls(
            turn,
            talk.session[turn],
            merged(contexts.prompt_tokens(talk), talk.system_tokens + contexts.summarised[asked]),
            merged(talk.output, contexts.head[asked]),
            merged(contexts.chain, contexts.chain[asked - 1]),
            Turns.build(
                merged(*_continued(contexts, asked, at)),
                predecessor,
                np.where(predecessor >= 0, think_ns, 0),
            ),
        )

    def select(self, index: Int64) -> SessionRequests:
        """Return the requests at `index`, in that order."""
        return SessionRequests(
            self.turn[index],
            self.session[index],
            self.prompt[index],
            self.output[index],
            self.chain[index],
            self.turns.select(index),
        )


def _continued(contexts: Contexts, asked: Int64, at: Int64) -> tuple[Int64, Int64]:
    """Where the request stands that each turn, and each summary, repeats with its answer; -1 where there is none.

    A turn goes on where the one before ended, unless a chain begins. A summary is made of all up to the turns kept
    behind it: it repeats the last turn before those, where that has its own context.
    """
    chain = contexts.chain
    goes_on = np.diff(chain, prepend=-1) == 0
    of_turns = np.where(goes_on, at[np.arange(at.size) - 1], -1)
    last = contexts.start[asked] - 1
    of_calls = np.where(chain[last] == chain[asked - 1], at[last], -1)
    return of_turns, of_calls
