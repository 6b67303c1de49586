"""Multi-turn sessions: a prompt repeats the talk so far and adds new tokens; prefixes grow and are shared.

A session starts with one of a few system prompts. The prompt of a turn is the system prompt, all earlier
prompts and answers, and the new user tokens. Turns follow each other by a gap from arrival to arrival (answer
and thinking time together: an open stream does not wait for answers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
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
from workloads.errors import ConfigError
from workloads.lengths import Lengths, draw_lengths, law_of
from workloads.streams import Streams
from workloads.trace import NS_PER_S, BlockHashes, Int64, Trace

_PILOT = 4096  # sessions drawn to learn how many turns they have


@dataclass(frozen=True)
class Window:
    """How much is drawn: at most `count` requests, all before `end_ns`, at `rate` requests/s in the end."""

    rate: float
    burstiness: float
    count: int | None
    end_ns: int | None


class SessionsConfig(BaseModel):
    """Shape of the sessions; input_tokens of the workload are then the new tokens of a turn."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    turns: Lengths = 4
    """Turns of a session; a length like any other, at least 1."""
    turn_gap_s: Annotated[float, Field(gt=0, le=LONGEST_S)] = 30.0
    """Mean seconds from one turn's arrival to the next."""
    turn_gap_burstiness: Annotated[float, Field(ge=LEAST_BURSTINESS)] = 1.0
    """Gamma shape of that gap; 1 is exponential."""
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
    """Draw sessions until the window is full: the first `count` requests in time, or all before its end.

    Session starts are spaced so that requests, not sessions, come at the window's rate in the long run; a
    stream starts without sessions under way, so its first turns come alone.
    """
    mean_turns = _mean_turns(config, new_tokens, output_tokens, streams)
    starts = Renewal(window.rate / mean_turns, window.burstiness)
    sessions = max(16, math.ceil((window.count or 0) / mean_turns))
    while True:
        begin = starts.first(streams.of("arrivals"), sessions)
        turns = _draw_turns(config, new_tokens, output_tokens, streams, sessions)
        arrival = begin[turns.session] + turns.since_start_ns
        order = np.argsort(arrival, kind="stable")[: window.count]
        if window.end_ns is not None:
            order = order[arrival[order] < window.end_ns]
        full = window.count is not None and order.size == window.count
        last_ns = int(arrival[order[-1]]) if full else window.end_ns
        if last_ns is not None and begin[-1] >= last_ns:
            break
        sessions *= 2
    hashes = _hashes(config, turns, streams, sessions)
    return Trace.build(
        arrival[order],
        turns.prompt[order],
        turns.output[order],
        session=turns.session[order],
        hashes=hashes.select(order),
        source="sessions",
    )


@dataclass(frozen=True)
class _Turns:
    """All turns, session by session."""

    session: Int64
    prompt: Int64
    output: Int64
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
    prompt = config.system_prompt_tokens + np.cumsum(new + output) - output
    said_before = np.cumsum(new + output) - new - output
    prompt -= said_before[first][session]
    since -= since[first][session]
    if config.max_input_tokens is None:
        return _Turns(session, prompt, output, since)
    keep = prompt <= config.max_input_tokens
    if not keep[first].all():
        raise ConfigError(
            f"workload.sessions.max_input_tokens: a first prompt has {prompt[first].max()} tokens, more than "
            f"{config.max_input_tokens}; allow more, or shorten system_prompt_tokens and input_tokens"
        )
    return _Turns(session[keep], prompt[keep], output[keep], since[keep])


def _mean_turns(
    config: SessionsConfig, new_tokens: Lengths, output_tokens: Lengths, streams: Streams
) -> float:
    """Mean turns of a session; of a sample where long prompts end sessions early."""
    if config.max_input_tokens is None:
        return law_of(config.turns).mean
    return _draw_turns(config, new_tokens, output_tokens, streams, _PILOT).session.size / _PILOT


def _hashes(config: SessionsConfig, turns: _Turns, streams: Streams, sessions: int) -> BlockHashes:
    """Block ids: the system prompt's full blocks are shared, later ones belong to the session.

    A block is shared once it is full; the partial last block of a prompt has an id of its own (odd ids).
    """
    size = config.block_tokens
    shared = config.system_prompt_tokens // size
    system = streams.of("prefixes").integers(config.system_prompts, size=sessions)
    counts = -(-turns.prompt // size)
    if counts.sum() > MOST_BLOCKS:
        raise ConfigError(
            f"workload.sessions: {counts.size} prompts have {counts.sum()} prefix blocks, more than {MOST_BLOCKS}; "
            "give fewer requests or tokens, or larger block_tokens"
        )
    own_blocks = np.zeros(sessions, dtype=np.int64)
    np.maximum.at(own_blocks, turns.session, counts - shared)
    base = config.system_prompts * shared + np.cumsum(own_blocks) - own_blocks
    ends = np.cumsum(counts)
    depth = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    owner = np.repeat(turns.session, counts)
    ids = 2 * np.where(depth < shared, system[owner] * shared + depth, base[owner] + depth - shared)
    partial = np.flatnonzero(turns.prompt % size)
    ids[ends[partial] - 1] = 2 * partial + 1
    return BlockHashes.build(size, counts, ids)
