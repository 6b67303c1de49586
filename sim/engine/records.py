"""Facts of a run, written as they happen and never changed: one entry per request, one per decision.

Tokens are not stored: in a decode row every sequence yields one token per step, so the step times and their weights
say everything about the gaps between tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import RequestTable, Sequence
from sim.kv.tiers.account import TierAccount

Int64 = NDArray[np.int64]


class Status(IntEnum):
    """How a request ended; a rejection names its reason."""

    COMPLETED = 0
    EXCEEDS_MAX_MODEL_LEN = 1
    EXCEEDS_KV_CACHE = 2
    EXCEEDS_MAX_NUM_BATCHED_TOKENS = 3
    EXCEEDS_CONNECTIONS = 4


class RequestLog:
    """Lifecycle times of every request [ns], -1 where it never came to that."""

    COLUMNS: Final = (
        "status",
        "replica",
        "scheduled_ns",
        "first_token_ns",
        "last_token_ns",
        "cached_tokens",
        "loading_ns",
        "preemptions",
        "paused_prefill_ns",
        "paused_decode_ns",
    )

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        blank = array("q", [-1]) * len(table)
        self.status, self.replica, self.scheduled, self.first_token, self.last_token = (
            array("q", blank) for _ in range(5)
        )
        zero = array("q", [0]) * len(table)
        self.cached_tokens, self.loading, self.preemptions, self.paused_prefill, self.paused_decode = (
            array("q", zero) for _ in range(5)
        )

    def finish(self, seq: Sequence, replica: int, now_ns: int) -> None:
        i = seq.index
        self.status[i] = 0
        self.replica[i] = replica
        self.scheduled[i] = seq.scheduled_ns
        self.first_token[i] = seq.first_token_ns
        self.last_token[i] = now_ns
        self.cached_tokens[i] = seq.cached_tokens
        self.loading[i] = seq.loading_ns
        if seq.preemptions:
            self.preemptions[i] = seq.preemptions
            self.paused_prefill[i] = seq.paused_prefill_ns
            self.paused_decode[i] = seq.paused_decode_ns

    def reject(self, index: int, replica: int, reason: str) -> None:
        self.status[index] = Status[reason.upper()]
        self.replica[index] = replica

    def columns(self) -> dict[str, Int64]:
        """All columns, arrivals and lengths included, as arrays over the requests."""
        own = (
            self.status,
            self.replica,
            self.scheduled,
            self.first_token,
            self.last_token,
            self.cached_tokens,
            self.loading,
            self.preemptions,
            self.paused_prefill,
            self.paused_decode,
        )
        return {
            "arrival_ns": np.array(self._table.arrival_ns, dtype=np.int64),
            "queued_ns": np.array(self._table.queued_ns, dtype=np.int64),
            "input_tokens": np.array(self._table.input_tokens, dtype=np.int64),
            "output_tokens": np.array(self._table.output_tokens, dtype=np.int64),
            **{
                name: np.array(column, dtype=np.int64) for name, column in zip(self.COLUMNS, own, strict=True)
            },
        }


@dataclass(frozen=True, eq=False)
class StepColumns:
    """The steps of one replica. A row is a run of steps with the same batch; all arrays are int64.

    start_ns, steps, decodes, prefill_tokens, prompts, running   per row
    first_used_blocks, last_used_blocks   KV blocks held while the first and the last step of the row ran
    stored_tokens, largest_free, cached_blocks, queries, hits   as of the first: see `Memory` and `BatchPlan`
    step_ns        duration of every step, `steps` of them per row in order
    prefix_queries, prefix_hits   tokens looked up in the prefix cache, and found, at first admissions
    preempted_queries, preempted_hits   the same of sequences that came again after a preemption
    loaded_hits    those of both that came from another tier than HBM
    padded_tokens  tokens computed for nobody, in padded batches
    first_pool_blocks, last_pool_blocks   as first_used_blocks and last_used_blocks, by pool: a row of columns each
    tiers          what was found in which tier, and what moved; None without lower tiers
    resumed_ns     end of each step that brought a preempted sequence back, once per sequence
    resumed_gaps_ns  the gap of its token there to the one before
    """

    start_ns: Int64
    steps: Int64
    decodes: Int64
    prefill_tokens: Int64
    prompts: Int64
    running: Int64
    last_used_blocks: Int64
    first_used_blocks: Int64
    stored_tokens: Int64
    largest_free: Int64
    cached_blocks: Int64
    queries: Int64
    hits: Int64
    step_ns: Int64
    resumed_ns: Int64
    resumed_gaps_ns: Int64
    prefix_queries: int = 0
    prefix_hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    loaded_hits: int = 0
    padded_tokens: int = 0
    tiers: TierAccount | None = None
    first_pool_blocks: Int64 = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    last_pool_blocks: Int64 = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    @cached_property
    def row_ns(self) -> Int64:
        """Duration of each row."""
        if not self.steps.size:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.step_ns, np.cumsum(self.steps) - self.steps)

    def step_ends_ns(self) -> Int64:
        """When each step ended."""
        row_starts = self.start_ns - (np.cumsum(self.row_ns) - self.row_ns)
        return np.cumsum(self.step_ns) + np.repeat(row_starts, self.steps)

    def decodes_of_steps(self) -> NDArray[np.int32]:
        """Sequences that decoded in each step (32 bits: there may be many millions)."""
        return np.repeat(self.decodes.astype(np.int32), self.steps)


class StepLog:
    """Collects the steps of one replica.

    Decode steps of an unchanged batch share a row however they were taken, one by one or many at once: a step that
    follows directly with as many decodes has the same sequences, since a batch only grows through a prompt.
    """

    FIELDS: Final = 13
    CHUNK: Final = 1 << 13

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._rows = array("q")
        self._pools = array("q")  # of each row: blocks of each pool in its first step, and in its last one
        self._chunk = np.empty(self.CHUNK, dtype=np.int64)  # of step times; full ones are put away
        self._count = 0
        self._full: list[Int64] = []
        self._end_ns = -1
        self._batch: tuple[int, int] | None = (
            None  # decodes and running of the last row, if that has no prompts
        )

    def add(self, start_ns: int, end_ns: int, plan: BatchPlan, step_ns: Int64 | int, steps: int) -> None:
        """`steps` steps of `plan` ran from start to end; `step_ns` holds their durations."""
        count = self._count
        if count + steps > self.CHUNK:
            self._full.append(self._chunk[:count])
            self._chunk = np.empty(self.CHUNK, dtype=np.int64)
            count = 0
        self._chunk[count : count + steps] = step_ns
        self._count = count + steps
        rows = self._rows
        decodes = plan.decodes - plan.padded_rows
        if self._batch == (decodes, plan.running) and not plan.chunks and self._end_ns == start_ns:
            rows[-12] += steps
            rows[-7] = plan.last_used_blocks
            if plan.pool_blocks:
                self._pools[-len(plan.pool_blocks) :] = array("q", plan.last_pool_blocks)
        else:
            prefill_tokens = 0
            for _, new_tokens in plan.chunks:
                prefill_tokens += new_tokens
            rows.extend(
                (
                    start_ns,
                    steps,
                    decodes,
                    prefill_tokens,
                    len(plan.chunks),
                    plan.running,
                    plan.last_used_blocks,
                    *plan.memory,
                    plan.prefix_queries,
                    plan.prefix_hits,
                )
            )
            if plan.pool_blocks:
                self._pools.extend(plan.pool_blocks)
                self._pools.extend(plan.last_pool_blocks)
            self._batch = None if plan.chunks else (decodes, plan.running)
        self._end_ns = end_ns

    def columns(self, core: EngineCore, end_ns: int) -> StepColumns:
        """Everything logged, and what the engine itself counted to the end, as columns; empties the log."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, self.FIELDS)
        step_ns = np.concatenate([*self._full, self._chunk[: self._count]])
        resumed = np.array(core.resumed_tokens, dtype=np.int64).reshape(-1, 2)
        pools = len(core.allocator.pool_blocks())
        of_pools = np.array(self._pools, dtype=np.int64).reshape(len(rows), 2 * pools)
        self._clear()
        return StepColumns(  # type: ignore[misc] # the FIELDS columns of a row come first
            *rows.T.copy(),
            step_ns=step_ns,
            resumed_ns=resumed[:, 0].copy(),
            resumed_gaps_ns=resumed[:, 1].copy(),
            prefix_queries=core.prefix_queries,
            prefix_hits=core.prefix_hits,
            preempted_queries=core.preempted_queries,
            preempted_hits=core.preempted_hits,
            loaded_hits=core.loaded_hits,
            padded_tokens=core.padded_tokens,
            tiers=core.allocator.tier_account(end_ns),
            first_pool_blocks=of_pools[:, :pools].copy(),
            last_pool_blocks=of_pools[:, pools:].copy(),
        )
