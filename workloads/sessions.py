"""Multi-turn sessions: a prompt repeats the talk so far and adds new tokens; prefixes grow and are shared.

A session starts with one of a few system prompts. The prompt of a turn is the system prompt, what the context policy
repeats of the turns before, and the new user tokens. Sessions start as an open stream, or so many at a time; within
one, a turn follows the answer before it, or (as recorded traces are replayed) comes at a time of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from workloads.arrivals import Renewal, rounded, unit_gaps
from workloads.bounds import (
    LEAST_BURSTINESS,
    LONGEST_NS,
    LONGEST_S,
    MOST_BLOCKS,
    MOST_REQUESTS,
    MOST_TOKENS,
    Count,
    Integral,
    Tokens,
)
from workloads.context import AnyContextPolicy
from workloads.context.full import Full
from workloads.context.talk import Talk
from workloads.errors import ConfigError
from workloads.lengths import Lengths, draw_lengths, law_of
from workloads.session_requests import SessionRequests
from workloads.streams import Streams
from workloads.trace import NS_PER_S, BlockHashes, Int64, Trace

_PILOT = 4096  # sessions drawn to learn how many turns they have


@dataclass(frozen=True)
class Window:
    """How much is drawn: at most `count` turns, all before `end_ns`, at `rate` turns/s in the end.

    Without a rate all sessions may start at once, as a closed loop has it, and `count` turns are drawn.
    """

    rate: float | None
    burstiness: float
    count: int | None
    end_ns: int | None


class SessionsConfig(BaseModel):
    """Shape of the sessions; input_tokens of the workload are then the new tokens of a turn."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    turns: Lengths = 4
    """Turns of a session; a length like any other, at least 1."""
    waits_for_answer: Annotated[bool, Field(strict=True)] = True
    """Whether a turn is sent turn_gap_s after the answer before it is done, as it must be where it repeats that answer:
    a slow service then has fewer requests to serve. false: turn_gap_s after the turn before was sent, whatever became
    of it, so that every service sees the same arrivals."""
    turn_gap_s: Annotated[float, Field(gt=0, le=LONGEST_S)] = 30.0
    """Mean seconds from an answer to the next turn (thinking); with waits_for_answer: false, from turn to turn."""
    turn_gap_burstiness: Annotated[float, Field(ge=LEAST_BURSTINESS)] = 1.0
    """Gamma shape of that gap; 1 is exponential."""
    context_policy: AnyContextPolicy = Full()
    """What a prompt repeats of its session: full, summary or sliding_window; a name, or a mapping with options."""
    system_prompt_tokens: Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS), Integral] = 0
    """Tokens of the system prompt in front of every session."""
    system_prompts: Count = 1
    """How many different system prompts there are; each session has one of them."""
    max_input_tokens: Tokens | None = None
    """A session ends before the turn whose prompt would be longer."""
    block_tokens: Tokens = 16
    """Tokens of a prefix block."""


def draw_sessions(
    config: SessionsConfig, new_tokens: Lengths, output_tokens: Lengths, streams: Streams, window: Window
) -> Trace:
    """Draw sessions until the window is full: the first `count` turns in time, or all before its end.

    Session starts are spaced so that turns, not sessions, come at the window's rate in the long run; a stream starts
    without sessions under way, so its first turns come alone. Where turns wait for answers, times are the earliest
    possible. What a context policy asks for besides (summaries) comes on top.
    """
    mean_turns = _mean_turns(config, new_tokens, output_tokens, streams)
    sessions = max(16, math.ceil((window.count or 0) / mean_turns))
    while True:
        turns = _draw_turns(config, new_tokens, output_tokens, streams, sessions)
        arrival = turns.since_start_ns
        taken = np.arange(window.count or 0)
        full = taken.size <= arrival.size
        if window.rate is not None:
            starts = Renewal(window.rate / mean_turns, window.burstiness)
            begin = starts.first(streams.of("arrivals"), sessions)
            arrival = begin[turns.talk.session] + arrival
            taken, full = _within(window, arrival, int(begin[-1]))
        if full:
            break
        sessions *= 2
    requests = SessionRequests.of(
        turns.talk, config.context_policy, turns.gap_ns, waits=config.waits_for_answer
    )
    times = (arrival if window.rate is not None else np.zeros_like(arrival))[requests.turn]
    order = np.argsort(times, kind="stable")
    kept = np.zeros(arrival.size, dtype=np.bool_)
    kept[taken] = True
    order = order[kept[requests.turn[order]]]
    requests = requests.select(order)
    systems = streams.of("prefixes").integers(config.system_prompts, size=sessions)
    return Trace.build(
        times[order],
        requests.prompt,
        requests.output,
        session=requests.session,
        hashes=_hashes(config, requests, systems),
        turns=requests.turns,
        source="sessions",
    )


def _within(window: Window, arrival: Int64, last_start_ns: int) -> tuple[Int64, bool]:
    """Which turns the window takes, and whether no session that starts later could have one of them."""
    taken = np.argsort(arrival, kind="stable")[: window.count]
    if window.end_ns is not None:
        taken = taken[arrival[taken] < window.end_ns]
    counted = window.count is not None and taken.size == window.count
    last_ns = int(arrival[taken[-1]]) if counted else window.end_ns
    return taken, last_ns is not None and last_start_ns >= last_ns


@dataclass(frozen=True)
class _Turns:
    """All turns: what is said, the gap before each (0 at a session's first) and its time since the session's start."""

    talk: Talk
    gap_ns: Int64
    since_start_ns: Int64


def _draw_turns(
    config: SessionsConfig, new_tokens: Lengths, output_tokens: Lengths, streams: Streams, sessions: int
) -> _Turns:
    """Draw the first `sessions` sessions; asking for more later gives the same ones first."""
    counts = draw_lengths(config.turns, streams.of("sessions", 0), sessions)
    if counts.sum() > 2 * MOST_REQUESTS:
        raise ConfigError(
            f"workload.sessions.turns: {sessions} sessions have {counts.sum()} turns, "
            f"more than {2 * MOST_REQUESTS}; give fewer"
        )
    session = np.repeat(np.arange(sessions), counts)
    first = np.cumsum(counts) - counts
    new = draw_lengths(new_tokens, streams.of("inputs"), session.size)
    output = draw_lengths(output_tokens, streams.of("outputs"), session.size)
    gaps = unit_gaps(streams.of("sessions", 1), session.size, config.turn_gap_burstiness)
    gaps *= config.turn_gap_s * NS_PER_S
    if np.bincount(session, gaps).max() > LONGEST_NS:
        raise ConfigError(
            f"workload.sessions.turn_gap_s: {config.turn_gap_s:g} makes a session longer than {LONGEST_S:g} s "
            "(63 years); give less, or fewer turns"
        )
    gaps_ns = rounded(gaps)
    gaps_ns[first] = 0
    since = np.cumsum(gaps_ns)
    since -= since[first][session]
    talk = Talk(session, new, output, config.system_prompt_tokens)
    if config.max_input_tokens is None:
        return _Turns(talk, gaps_ns, since)
    prompt = config.context_policy.contexts(talk).prompt_tokens(talk)
    too_long = prompt > config.max_input_tokens
    if too_long[first].any():
        raise ConfigError(
            f"workload.sessions.max_input_tokens: a first prompt has {prompt[first].max()} tokens, more than "
            f"{config.max_input_tokens}; allow more, or shorten system_prompt_tokens and input_tokens"
        )
    ended = np.cumsum(too_long)
    keep: NDArray[np.bool_] = ended == (ended - too_long)[first][session]
    return _Turns(
        Talk(session[keep], new[keep], output[keep], talk.system_tokens), gaps_ns[keep], since[keep]
    )


def _mean_turns(
    config: SessionsConfig, new_tokens: Lengths, output_tokens: Lengths, streams: Streams
) -> float:
    """Mean turns of a session; of a sample where long prompts end sessions early."""
    if config.max_input_tokens is None:
        return law_of(config.turns).mean
    return _draw_turns(config, new_tokens, output_tokens, streams, _PILOT).gap_ns.size / _PILOT


def _hashes(config: SessionsConfig, requests: SessionRequests, systems: Int64) -> BlockHashes:
    """Block ids: the system prompt's full blocks are shared, later ones belong to the chain.

    A block is shared once it is full; the partial last block of a prompt has an id of its own (odd ids).
    """
    size = config.block_tokens
    shared = config.system_prompt_tokens // size
    counts = -(-requests.prompt // size)
    if counts.sum() > MOST_BLOCKS:
        raise ConfigError(
            f"workload.sessions: {counts.size} prompts have {counts.sum()} prefix blocks, more than {MOST_BLOCKS}; "
            "give fewer requests or tokens, or larger block_tokens"
        )
    own_blocks = np.zeros(int(requests.chain.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(own_blocks, requests.chain, counts - shared)
    base = config.system_prompts * shared + np.cumsum(own_blocks) - own_blocks
    ends = np.cumsum(counts)
    depth = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    system, own = (
        np.repeat(column, counts)
        for column in (systems[requests.session] * shared, base[requests.chain] - shared)
    )
    ids = 2 * (np.where(depth < shared, system, own) + depth)
    partial = np.flatnonzero(requests.prompt % size)
    ids[ends[partial] - 1] = 2 * partial + 1
    return BlockHashes.build(size, counts, ids)
