"""Paged blocks: every sequence holds just the blocks that its tokens fill, the last one partly.

All decoding sequences grow by one token a step, so the blocks that a step needs are a count: a sequence needs one
in every `block_size`-th step, and `_due` holds how many need theirs in which of these phases. Many steps at once
then cost no more than one. Ids are given out when a driver asks for a block table: a simulated replica never does,
an engine with real memory does in every step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvariantError

Contents = NDArray[np.int64]

_NONE: Contents = np.zeros(0, dtype=np.int64)


class Holding:
    """What one sequence holds. `tokens` is exact while it does not grow; growing adds a token per step."""

    __slots__ = ("blocks", "growing_since", "phase", "runs", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.blocks = 0  # while growing: as of `growing_since`
        self.growing_since = -1
        self.phase = 0
        self.runs: list[tuple[int, int]] = []  # (first block id, length), for as many as were asked for


class PagedAllocator:
    """`num_blocks` blocks of `block_size` tokens. Short of blocks, a call says so and changes nothing."""

    finds_prefixes = False  # whether it asks what is in a block

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks = num_blocks
        self.now_ns = 0  # kept up by the engine, for policies that go by time
        self._step = 0
        self._growing = 0
        self._due = [0] * block_size
        self._free_runs: list[tuple[int, int]] = [(0, num_blocks)] if num_blocks else []

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def open(self, contents: Contents | None) -> Holding:  # noqa: ARG002  only a prefix cache asks what is in a block
        """Begin to hold blocks for a sequence; `contents` names its full blocks as far as they are known."""
        return Holding()

    def find_prefix(self, contents: Contents | None, tokens: int) -> Contents:  # noqa: ARG002
        """Blocks that already hold the start of a sequence of `tokens` tokens: none without a prefix cache."""
        return _NONE

    def can_hold(self, tokens: int, prefix: Contents = _NONE) -> bool:  # noqa: ARG002
        """Whether a sequence that holds nothing yet, but will share `prefix`, could hold `tokens` now."""
        return -(-tokens // self.block_size) <= self.free_blocks

    def share(self, holding: Holding, prefix: Contents) -> None:
        """Let a sequence that holds nothing yet hold the blocks of `prefix`, beside whoever else does."""

    def missing(self, holding: Holding, tokens: int) -> int:
        """Blocks that a sequence which is not growing lacks for `tokens` tokens in all."""
        return -(-tokens // self.block_size) - holding.blocks

    def extend(self, holding: Holding, tokens: int) -> bool:
        """Let a sequence that is not growing hold `tokens` tokens in all; False where blocks are short."""
        missing = -(-tokens // self.block_size) - holding.blocks
        if missing > self.free_blocks:
            return False
        self.free_blocks -= missing
        holding.blocks += missing
        holding.tokens = tokens
        return True

    def start_growing(self, holding: Holding) -> None:
        """From the next step on, the sequence takes one token a step."""
        # It needs a block in the steps s with tokens + (s - growing_since) divisible by block_size.
        holding.growing_since = self._step
        holding.phase = phase = (self._step - holding.tokens) % self.block_size
        self._due[phase] += 1
        self._growing += 1

    def growth_demand(self) -> int:
        """Blocks that the growing sequences need in the next step."""
        return self._due[self._step % self.block_size]

    def needs_block(self, holding: Holding) -> bool:
        """Whether this growing sequence needs a block in the next step."""
        return holding.phase == self._step % self.block_size

    def growth_limit(self, steps: int) -> int:
        """Return how many of the next `steps` steps the growing sequences can take before blocks run short."""
        if not self._growing:
            return steps
        rounds = (
            self.free_blocks // self._growing
        )  # each round of block_size steps takes one block a sequence
        if rounds * self.block_size >= steps:
            return steps
        left = self.free_blocks - rounds * self._growing
        limit = rounds * self.block_size
        while limit < steps:
            left -= self._due[(self._step + limit) % self.block_size]
            if left < 0:
                break
            limit += 1
        return limit

    def grow(self, steps: int) -> None:
        """All growing sequences take `steps` tokens; the caller has made sure that the blocks are there."""
        due, size = self._due, self.block_size
        start = self._step % size
        if steps == 1:
            need = due[start]
        else:
            rounds, rest = divmod(steps, size)
            need = rounds * self._growing + sum(due[start : start + rest])
            if start + rest > size:
                need += sum(due[: start + rest - size])
        self._step += steps
        if need:
            self._take_for_growth(need)

    def _take_for_growth(self, count: int) -> None:
        self.free_blocks -= count
        if self.free_blocks < 0:
            raise InvariantError(f"{-self.free_blocks} blocks taken beyond the pool of {self.num_blocks}")

    def held(self, holding: Holding) -> int:
        """Blocks that the sequence holds now."""
        if holding.growing_since < 0:
            return holding.blocks
        return -(-(holding.tokens + self._step - holding.growing_since) // self.block_size)

    def release(self, holding: Holding) -> None:
        """Take back everything that the sequence holds; it may start again from nothing."""
        self.free_blocks += self.held(holding)
        self._stop_growing(holding)
        holding.tokens = holding.blocks = 0
        if holding.runs:
            self._free_runs.extend(holding.runs)
            holding.runs = []

    def _stop_growing(self, holding: Holding) -> None:
        if holding.growing_since >= 0:
            self._due[holding.phase] -= 1
            self._growing -= 1
            holding.growing_since = -1

    def block_table(self, holding: Holding) -> list[int]:
        """Ids of the sequence's blocks in the order of its tokens; ids stay the same as it grows."""
        lacking = self.held(holding) - sum(length for _, length in holding.runs)
        while lacking > 0:
            first, length = self._free_runs.pop()
            taken = min(length, lacking)
            if taken < length:
                self._free_runs.append((first + taken, length - taken))
            if holding.runs and sum(holding.runs[-1]) == first:
                holding.runs[-1] = (holding.runs[-1][0], holding.runs[-1][1] + taken)
            else:
                holding.runs.append((first, taken))
            lacking -= taken
        return [block for first, length in holding.runs for block in range(first, first + length)]

    def check_integrity(self, holdings: Iterable[Holding]) -> None:
        """Raise InvariantError unless `holdings`, being all there are, account for every block exactly once."""
        holdings = list(holdings)
        held = sum(self.held(h) for h in holdings)
        if held + self.free_blocks != self.num_blocks:
            raise InvariantError(f"{held} blocks held + {self.free_blocks} free != {self.num_blocks}")
        self._check_growth(holdings)
        runs = [*self._free_runs, *(run for h in holdings for run in h.runs)]
        ids = sorted(block for first, length in runs for block in range(first, first + length))
        if ids != list(range(self.num_blocks)):
            raise InvariantError("a block id is lost or held twice")

    def _check_growth(self, holdings: Iterable[Holding]) -> None:
        due = [0] * self.block_size
        for h in holdings:
            if h.growing_since >= 0:
                due[h.phase] += 1
        if due != self._due or sum(due) != self._growing:
            raise InvariantError(f"growth phases {self._due} do not match the sequences {due}")
