"""Paged blocks: every sequence holds just the blocks that its tokens fill, the last one partly.

All decoding sequences grow by one token a step, so the blocks that a step needs are a count: a sequence needs one
in every `block_size`-th step, and `_due` holds how many need theirs in which of these phases. Many steps at once
then cost no more than one. Ids are given out when a driver asks for a block table: a simulated replica never does,
an engine with real memory does in every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.errors import InvariantError
from sim.kv.allocators.decision import Allocator, Claim, Holding, Memory


class Paged(BaseModel):
    """Blocks of `engine.block_size` tokens, given out as tokens fill them (Kwon et al., SOSP 2023)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["paged"] = "paged"

    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,  # noqa: ARG002
        block_bytes: int,  # noqa: ARG002
    ) -> PagedAllocator:
        return PagedAllocator(num_blocks, block_size)


class PagedHolding(Holding):
    """Blocks of one sequence, as a count."""

    __slots__ = ("blocks", "phase", "runs")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = 0  # while growing: as of `growing_since`
        self.phase = 0
        self.runs: list[tuple[int, int]] = []  # (first block id, length), for as many as were asked for


class PagedAllocator(Allocator):
    """`num_blocks` blocks of `block_size` tokens. Short of blocks, a call says so and changes nothing."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._free = num_blocks
        self._step = 0
        self._growing = 0
        self._due = [0] * block_size
        self._promised = 0
        self._tokens = 0  # of all holdings, less the step at which it began for each that grows
        self._shares = 0  # holders of blocks beyond the first of each
        self._free_runs: list[tuple[int, int]] = [(0, num_blocks)] if num_blocks else []

    @property
    def free_blocks(self) -> int:
        return self._free

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self._free

    @property
    def stored_tokens(self) -> int:
        return self._tokens + self._growing * self._step - self._shares * self.block_size

    @property
    def largest_free_blocks(self) -> int:
        return self._free

    def memory(self) -> Memory:
        free = self._free
        stored = self._tokens + self._growing * self._step - self._shares * self.block_size
        return self.num_blocks - free, stored, free, 0

    def can_hold(self, claim: Claim) -> bool:
        return self.claimed_blocks(claim) <= self._free

    def claimed_blocks(self, claim: Claim) -> int:
        """Free blocks that it takes to hold all tokens of a claim."""
        return -(-claim.tokens // self.block_size)

    def open(self, claim: Claim) -> PagedHolding:  # noqa: ARG002
        return PagedHolding()

    def extend(self, holding: PagedHolding, tokens: int) -> bool:
        missing = -(-tokens // self.block_size) - holding.blocks
        if missing > self._free:
            return False
        self._free -= missing
        holding.blocks += missing
        self._tokens += tokens - holding.tokens
        holding.tokens = tokens
        return True

    def start_growing(self, holding: PagedHolding) -> None:
        # It needs a block in the steps s with tokens + (s - growing_since) divisible by block_size.
        holding.growing_since = self._step
        holding.phase = phase = (self._step - holding.tokens) % self.block_size
        self._due[phase] += 1
        self._growing += 1
        self._tokens -= self._step

    def has_room(self, extensions: Sequence[tuple[PagedHolding, int]]) -> bool:
        need = self._due[self._step % self.block_size]
        for holding, tokens in extensions:
            need += -(-tokens // self.block_size) - holding.blocks
        return need <= self._free

    def start_room(self) -> None:
        self._promised = 0

    def promise(self, holding: PagedHolding, tokens: int | None) -> bool:
        need = self.missing_blocks(holding, tokens)
        if self._promised + need > self._free:  # blocks that a victim shared stay taken
            return False
        self._promised += need
        return True

    def missing_blocks(self, holding: PagedHolding, tokens: int | None) -> int:
        """Blocks that a sequence lacks for `tokens` in all, or where it grows (None) for its next token."""
        if tokens is None:
            return int(holding.phase == self._step % self.block_size)
        return -(-tokens // self.block_size) - holding.blocks

    def growth_limit(self, steps: int) -> int:
        return self.growth_within(self._free, steps)

    def growth_within(self, blocks: int, steps: int) -> int:
        """How many of the next `steps` steps the growing sequences can take with so many blocks."""
        if not self._growing:
            return steps
        rounds = blocks // self._growing  # each round of block_size steps takes one block a sequence
        if rounds * self.block_size >= steps:
            return steps
        left = blocks - rounds * self._growing
        limit = rounds * self.block_size
        while limit < steps:
            left -= self._due[(self._step + limit) % self.block_size]
            if left < 0:
                break
            limit += 1
        return limit

    def grow(self, steps: int) -> None:
        need = self.growth(steps)
        self._step += steps
        if need:
            self._take_for_growth(need)

    def growth(self, steps: int) -> int:
        """Blocks that the growing sequences take in the next `steps` steps."""
        due, size = self._due, self.block_size
        start = self._step % size
        if steps == 1:
            return due[start]
        rounds, rest = divmod(steps, size)
        need = rounds * self._growing + sum(due[start : start + rest])
        if start + rest > size:
            need += sum(due[: start + rest - size])
        return need

    def _take_for_growth(self, count: int) -> None:
        self._free -= count
        if self._free < 0:
            raise InvariantError(f"{-self._free} blocks taken beyond the pool of {self.num_blocks}")

    def held(self, holding: PagedHolding) -> int:
        if holding.growing_since < 0:
            return holding.blocks
        return -(-(holding.tokens + self._step - holding.growing_since) // self.block_size)

    def release(self, holding: PagedHolding) -> None:
        self._free += self.held(holding)
        self._stop_growing(holding)
        self._tokens -= holding.tokens
        holding.tokens = holding.blocks = 0
        if holding.runs:
            self._free_runs.extend(holding.runs)
            holding.runs = []

    def _stop_growing(self, holding: PagedHolding) -> None:
        """Its tokens up to now become those that it holds."""
        if holding.growing_since >= 0:
            self._due[holding.phase] -= 1
            self._growing -= 1
            self._tokens += self._step
            holding.tokens += self._step - holding.growing_since
            holding.growing_since = -1

    def block_table(self, holding: PagedHolding) -> list[int]:
        self._hand_out(holding, self.held(holding) - sum(length for _, length in holding.runs))
        return [block for first, length in holding.runs for block in range(first, first + length)]

    def _hand_out(self, holding: PagedHolding, lacking: int) -> None:
        """Give ids to so many blocks more."""
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

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        holdings = list(holdings)
        self._check_counts(holdings)
        runs = [*self._free_runs, *(run for h in holdings for run in h.runs)]
        ids = sorted(block for first, length in runs for block in range(first, first + length))
        if ids != list(range(self.num_blocks)):
            raise InvariantError("a block id is lost or held twice")

    def _check_counts(self, holdings: Sequence[PagedHolding]) -> None:
        held = sum(self.held(h) for h in holdings)
        if held + self._free != self.num_blocks:
            raise InvariantError(f"{held} blocks held + {self._free} free != {self.num_blocks}")
        self._check_growth(holdings)

    def _check_growth(self, holdings: Iterable[PagedHolding]) -> None:
        due = [0] * self.block_size
        tokens = 0
        for h in holdings:
            tokens += h.tokens
            if h.growing_since >= 0:
                due[h.phase] += 1
                tokens += self._step - h.growing_since
        if due != self._due or sum(due) != self._growing:
            raise InvariantError(f"growth phases {self._due} do not match the sequences {due}")
        counted = self._tokens + self._growing * self._step
        if tokens != counted:
            raise InvariantError(f"{counted} tokens counted instead of {tokens}")
