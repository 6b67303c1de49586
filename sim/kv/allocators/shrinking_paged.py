"""Paged KV whose older tokens shrink: what a sequence holds is a function of its tokens (`Footprint`).

The pool is counted in granules; in the engine's words it has so many blocks' worth of recent blocks. Sequences that
decode take a token a step, so what all of them hold some steps on is one sum over their tokens; it never falls, so the
step in which it runs short is found by bisection. Nothing here gives out ids: blocks of two sizes change places as
tokens age, which only a count of them needs to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.errors import InvariantError
from sim.kv.allocators.decision import Allocator, Claim, Holding
from sim.kv.footprint import Footprint


@dataclass(frozen=True)
class ShrinkingPaged:
    """Paged, with KV compressed by age: what `paged` means where a scenario says so in `kv_compression`."""

    footprint: Footprint
    name: Literal["paged"] = "paged"

    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,  # noqa: ARG002
        block_bytes: int,  # noqa: ARG002
    ) -> ShrinkingPagedAllocator:
        return ShrinkingPagedAllocator(num_blocks, block_size, self.footprint)


class ShrinkingHolding(Holding):
    """Granules of one sequence; while it grows, those of all that grow are counted together."""

    __slots__ = ("granules", "place")

    def __init__(self) -> None:
        super().__init__()
        self.granules = 0
        self.place = -1  # among those that grow


class ShrinkingPagedAllocator(Allocator):
    """A pool of `num_blocks` recent blocks' worth of granules."""

    def __init__(self, num_blocks: int, block_size: int, footprint: Footprint) -> None:
        if footprint.block_size != block_size:
            raise InvariantError(f"a footprint in blocks of {footprint.block_size} tokens, not {block_size}")
        super().__init__(num_blocks, block_size)
        self._footprint = footprint
        self._free = num_blocks * footprint.recent_granules
        self._step = 0
        self._growing: list[ShrinkingHolding] = []
        self._starts = np.zeros(64, dtype=np.int64)  # of those: tokens less the step in which they were held
        self._grown = 0  # granules of those, as of `_step`
        self._next: int | None = None  # and in the step after it, once asked for
        self._promised = 0
        self._resting = 0  # parts of tokens (see Footprint) stored by the others

    @property
    def free_blocks(self) -> int:
        return self._free // self._footprint.recent_granules

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    @property
    def largest_free_blocks(self) -> int:
        return self.free_blocks

    @property
    def stored_tokens(self) -> int:
        """Older tokens count as what they take beside a recent one."""
        growing = self._footprint.stored(self._starts[: len(self._growing)] + self._step)
        return (self._resting + growing) // self._footprint.parts_per_token

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:  # noqa: ARG002
        return self._footprint.granules(final_tokens) <= self.num_blocks * self._footprint.recent_granules

    def can_hold(self, claim: Claim) -> bool:
        return self._footprint.granules(claim.tokens) <= self._free

    def open(self, claim: Claim) -> ShrinkingHolding:  # noqa: ARG002
        return ShrinkingHolding()

    def extend(self, holding: ShrinkingHolding, tokens: int) -> bool:
        granules = self._footprint.granules(tokens)
        if granules - holding.granules > self._free:
            return False
        self._free -= granules - holding.granules
        self._resting += self._stored(tokens) - self._stored(holding.tokens)
        holding.granules = granules
        holding.tokens = tokens
        return True

    def start_growing(self, holding: ShrinkingHolding) -> None:
        place = holding.place = len(self._growing)
        if place == self._starts.size:
            self._starts = np.concatenate([self._starts, np.zeros_like(self._starts)])
        self._growing.append(holding)
        self._starts[place] = holding.tokens - self._step
        holding.growing_since = self._step
        self._grown += holding.granules
        self._resting -= self._stored(holding.tokens)
        self._next = None

    def has_room(self, extensions: Sequence[tuple[ShrinkingHolding, int]]) -> bool:
        need = self._after(1) - self._grown
        for holding, tokens in extensions:
            need += self._footprint.granules(tokens) - holding.granules
        return need <= self._free

    def start_room(self) -> None:
        self._promised = 0

    def promise(self, holding: ShrinkingHolding, tokens: int | None) -> bool:
        if tokens is None:
            now = self._tokens(holding)
            need = self._footprint.granules(now + 1) - self._footprint.granules(now)
        else:
            need = self._footprint.granules(tokens) - holding.granules
        if self._promised + need > self._free:
            return False
        self._promised += need
        return True

    def growth_limit(self, steps: int) -> int:
        room = self._free + self._grown
        if self._after(steps) <= room:
            return steps
        enough, short = 0, steps
        while short - enough > 1:
            middle = (enough + short) // 2
            if self._after(middle) <= room:
                enough = middle
            else:
                short = middle
        return enough

    def grow(self, steps: int) -> None:
        grown = self._after(steps)
        self._free -= grown - self._grown
        self._grown = grown
        self._step += steps
        self._next = None
        if self._free < 0:
            raise InvariantError(f"{-self._free} granules taken beyond the pool of {self.num_blocks} blocks")

    def held(self, holding: ShrinkingHolding) -> int:
        """Blocks' worth, rounded up."""
        return -(-self._footprint.granules(self._tokens(holding)) // self._footprint.recent_granules)

    def release(self, holding: ShrinkingHolding) -> None:
        tokens = self._tokens(holding)
        granules = self._footprint.granules(tokens)
        self._free += granules
        if holding.growing_since < 0:
            self._resting -= self._stored(tokens)
        else:
            self._grown -= granules
            self._stop_growing(holding)
        holding.tokens = holding.granules = 0

    def block_table(self, holding: ShrinkingHolding) -> list[int]:
        raise InvariantError(f"blocks of two sizes have no table of ids ({self.held(holding)} held)")

    def check_integrity(self, holdings: Iterable[ShrinkingHolding]) -> None:
        holdings = list(holdings)
        pool = self.num_blocks * self._footprint.recent_granules
        held = sum(self._footprint.granules(self._tokens(h)) for h in holdings)
        if held + self._free != pool:
            raise InvariantError(f"{held} granules held + {self._free} free != {pool}")
        growing = [h for h in holdings if h.growing_since >= 0]
        grown = sum(self._footprint.granules(self._tokens(h)) for h in growing)
        if len(growing) != len(self._growing) or grown != self._grown:
            raise InvariantError(f"{self._grown} granules of {len(self._growing)} that grow, not {grown}")
        stored = sum(self._stored(self._tokens(h)) for h in holdings) // self._footprint.parts_per_token
        if stored != self.stored_tokens:
            raise InvariantError(f"{self.stored_tokens} tokens stored instead of {stored}")

    def _after(self, steps: int) -> int:
        """Granules of all that grow, so many steps on."""
        if steps == 1 and self._next is not None:
            return self._next
        total = self._footprint.total(self._starts[: len(self._growing)] + (self._step + steps))
        if steps == 1:
            self._next = total
        return total

    def _tokens(self, holding: ShrinkingHolding) -> int:
        if holding.growing_since < 0:
            return holding.tokens
        return holding.tokens + self._step - holding.growing_since

    def _stored(self, tokens: int) -> int:
        return self._footprint.stored(np.array([tokens], dtype=np.int64))

    def _stop_growing(self, holding: ShrinkingHolding) -> None:
        last = self._growing.pop()
        if last is not holding:
            self._growing[holding.place] = last
            self._starts[holding.place] = self._starts[last.place]
            last.place = holding.place
        holding.place = holding.growing_since = -1
        self._next = None
