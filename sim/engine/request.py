"""Requests: what arrives, and how far one has come inside an engine."""

from __future__ import annotations

from array import array

import numpy as np

from sim.kv.allocators.decision import NO_BLOCKS, Contents, Holding
from workloads.trace import BlockHashes, Trace

_MOST_BLOCKS = 1 << 22  # of one sequence


class RequestTable:
    """What is known of every request before it runs; one entry each.

    Arrivals may be filled in as they happen; `queued_ns`, when an engine got it, always is (-1 before).

    `hashes`, in blocks of the engine's size, say what is in the full blocks of each sequence, as far as it can be
    found again: of the prompt, and of the answer where a later prompt repeats it. `turns` say who waits for whom.
    """

    def __init__(self, trace: Trace, hashes: BlockHashes | None = None) -> None:
        self._hashes = hashes
        self.turns = trace.turns
        self.arrival_ns = array("q", trace.arrival_ns.tobytes())
        self.queued_ns = array("q", [-1]) * len(self.arrival_ns)
        self.input_tokens = trace.input_tokens.data
        self.output_tokens = trace.output_tokens.data
        self.priority = trace.priority.data
        self.session = trace.session.data
        self.tenant = trace.tenant.data

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def prompt_blocks(self, index: int) -> Contents:
        """Content of the full blocks of the prompt, as far as it can be found again."""
        if self._hashes is None:
            return NO_BLOCKS
        return self._hashes.of(index)[: self.input_tokens[index] // self._hashes.block_tokens]

    def contents(self, index: int, block_size: int) -> Contents:
        """Content of every full block that the sequence will ever fill; what nobody shares is a number of its own."""
        blocks = (self.input_tokens[index] + self.output_tokens[index] - 1) // block_size
        contents = -2 - index * _MOST_BLOCKS - np.arange(blocks, dtype=np.int64)
        if self._hashes is not None:
            known = self._hashes.of(index)[:blocks]
            contents[: known.size] = known
        return contents


class Sequence:
    """A request from its first admission on. Times are integer nanoseconds, counts are tokens.

    While it prefills, `computed` counts the tokens whose KV exists and `target` those that must exist before the
    next token can be sampled: the prompt, or after a preemption the prompt and everything generated so far.
    While it decodes, it grows by one token a step and nothing here is touched: its progress is the difference
    between the engine's step and `joined_step`.
    """

    __slots__ = (
        "cached_tokens",
        "computed",
        "crossing_step",
        "first_token_ns",
        "generated",
        "index",
        "joined_step",
        "kv",
        "last_step",
        "loading_ns",
        "opened_ns",
        "output_tokens",
        "paused_decode_ns",
        "paused_ns",
        "paused_prefill_ns",
        "preemptions",
        "priority",
        "scheduled_ns",
        "target",
        "ticket",
        "token_ns",
    )

    def __init__(self, index: int, table: RequestTable, kv: Holding) -> None:
        self.index = index
        self.output_tokens = table.output_tokens[index]
        self.priority = table.priority[index]
        self.kv = kv
        self.target = table.input_tokens[index]
        self.computed = 0
        self.cached_tokens = 0  # of the prompt, found in the prefix cache at its first admission
        self.generated = 0  # as of joined_step while it decodes
        self.ticket = 0  # number of its latest admission; the running queue is in this order
        self.joined_step = -1  # engine step at which it began to decode; -1 while it does not
        self.last_step = -1  # engine step that yields its last token; -1 while it does not decode
        self.crossing_step = -1  # engine step in which its context fills the sliding window
        self.preemptions = 0
        self.opened_ns = -1  # when it began to hold KV, last
        self.loading_ns = 0  # spent waiting for KV from another tier
        self.scheduled_ns = -1  # when it first ran
        self.first_token_ns = -1
        self.token_ns = -1  # its latest token, as of a preemption
        self.paused_ns = -1  # when it was preempted; -1 while it runs
        self.paused_prefill_ns = 0
        self.paused_decode_ns = 0

    def __repr__(self) -> str:
        return f"Sequence({self.index}, computed={self.computed}/{self.target}, joined={self.joined_step})"
