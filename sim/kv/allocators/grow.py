"""One range a sequence, which grows by steps instead of being set aside for the whole life.

Where the space behind a region is free, it grows in place. Else it moves to the place that fits, and all that it holds
is copied within HBM; or, where there is none, it slides down into the free space right before it, if that and its own
are enough. Else room is short, and somebody has to give way. Alone in the pool a region thus always grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.region import Region, RegionAllocator
from sim.kv.space.regions import FittedPlacement, FreeRegions, Run
from sim.kv.transfer import Transfer


class Grow(BaseModel):
    """One range of memory for a sequence, longer by a step whenever it is full; moved where it cannot grow in place."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["grow"] = "grow"
    step_tokens: int = Field(128, strict=True, ge=1, le=1_048_576)
    """A region is a multiple of it long, in whole blocks."""
    placement: FittedPlacement = "first_fit"
    """Where a region begins: the lowest address, or the shortest free range."""

    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,  # noqa: ARG002
        block_bytes: int,
    ) -> GrowAllocator:
        step_blocks = -(-self.step_tokens // block_size)
        return GrowAllocator(num_blocks, block_size, step_blocks, self.placement, block_bytes)


class GrowingRegion(Region):
    """A region that is full, while it grows, before the engine's step `full_step`; -1 while it does not."""

    __slots__ = ("full_step", "number")

    def __init__(self, start: int, blocks: int, number: int) -> None:
        super().__init__(start, blocks)
        self.full_step = -1
        self.number = number


class GrowAllocator(RegionAllocator):
    """Regions of a multiple of `step_blocks` blocks."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        step_blocks: int,
        placement: FittedPlacement = "first_fit",
        block_bytes: int = 0,
    ) -> None:
        self._free = FreeRegions(num_blocks, placement)
        super().__init__(num_blocks, block_size, self._free)
        self._step_blocks = step_blocks
        self._block_bytes = block_bytes
        self._opened = 0
        self._full: list[tuple[int, int, GrowingRegion]] = []  # heap of (full_step, number, region)
        self.moves = 0
        self.moved_tokens = 0

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:  # noqa: ARG002
        return self._room_for(final_tokens) <= self.num_blocks

    def can_hold(self, claim: Claim) -> bool:
        return self._free.fits(self._room_for(claim.tokens))

    def open(self, claim: Claim) -> GrowingRegion:
        self._opened += 1
        return GrowingRegion(*self._free.place(self._room_for(claim.tokens)), self._opened)

    def extend(self, holding: GrowingRegion, tokens: int) -> bool:
        if not self._enlarge(holding, self._room_for(tokens)):
            return False
        self._store(holding, tokens)
        return True

    def start_growing(self, holding: GrowingRegion) -> None:
        self._begin_growing(holding)
        self._watch(holding, self._step + holding.blocks * self.block_size - holding.tokens)

    def has_room(self, extensions: Sequence[tuple[GrowingRegion, int]]) -> bool:
        wanted = [(holding, self._room_for(tokens)) for holding, tokens in extensions]
        wanted = [(holding, blocks) for holding, blocks in wanted if blocks > holding.blocks]
        wanted += [(holding, holding.blocks + self._step_blocks) for holding in self._due_now()]
        return not wanted or self._try(wanted)

    def start_room(self) -> None:
        pass  # a promise makes room at once, so there is nothing to forget

    def promise(self, holding: GrowingRegion, tokens: int | None) -> bool:
        if tokens is not None:
            return self._enlarge(holding, self._room_for(tokens))
        return holding.full_step != self._step or self._lengthen(holding)

    def growth_limit(self, steps: int) -> int:
        full = self._next_full()
        return steps if full is None else min(steps, full - self._step)

    def grow(self, steps: int) -> None:
        end = self._step + steps
        while (full := self._next_full()) is not None and full < end:
            region = heappop(self._full)[2]
            if not self._lengthen(region):
                raise InvariantError(
                    f"no room for {self._step_blocks} blocks more behind {region.blocks} in a pool of "
                    f"{self.num_blocks}, {self._free.largest} of them free in one range"
                )
        self._step = end

    def release(self, holding: GrowingRegion) -> None:
        self._forget(holding)
        holding.full_step = -1
        self._free.give(holding.start, holding.blocks)
        holding.blocks = 0

    def landed(self, transfer: Transfer) -> None:
        """A copy has ended; the step that waited for it is all that it concerned."""

    def check_integrity(self, holdings: Iterable[GrowingRegion]) -> None:
        holdings = list(holdings)
        self._check_regions(holdings)
        for h in holdings:
            left = h.blocks * self.block_size - self.tokens_of(h)
            if h.growing_since >= 0 and (h.full_step, h.number, h) not in self._full:
                raise InvariantError(f"nobody watches for region {h.number} to be full")
            if h.full_step != (self._step + left if h.growing_since >= 0 else -1):
                raise InvariantError(f"region {h.number} is not full before step {h.full_step}")

    def _room_for(self, tokens: int) -> int:
        """Blocks of a region for so many tokens."""
        return -(-self.blocks_for(tokens) // self._step_blocks) * self._step_blocks

    def _watch(self, holding: GrowingRegion, full_step: int) -> None:
        holding.full_step = full_step
        heappush(self._full, (full_step, holding.number, holding))

    def _next_full(self) -> int | None:
        """The next step before which a growing region is full."""
        heap = self._full
        while heap and heap[0][0] != heap[0][2].full_step:
            heappop(heap)
        return heap[0][0] if heap else None

    def _due_now(self) -> list[GrowingRegion]:
        """Regions that the next step would outgrow, in the order in which they were opened."""
        due = []
        while self._next_full() == self._step:
            due.append(heappop(self._full))
        for entry in due:
            heappush(self._full, entry)
        return [region for _, _, region in due]

    def _lengthen(self, holding: GrowingRegion) -> bool:
        """Give a growing region that is full a step more."""
        before = holding.blocks
        if not self._enlarge(holding, before + self._step_blocks):
            return False
        self._watch(holding, holding.full_step + (holding.blocks - before) * self.block_size)
        return True

    def _enlarge(self, holding: GrowingRegion, blocks: int) -> bool:
        """Make a region at least so many blocks long, and have its tokens copied where that takes a move."""
        if blocks <= holding.blocks:
            return True
        start, length = holding.start, holding.blocks
        if not self._find(holding, blocks):
            return False
        if holding.start != start:
            tokens = length * self.block_size if holding.growing_since >= 0 else holding.tokens
            self._copy(tokens)
        return True

    def _copy(self, tokens: int) -> None:
        self.moves += 1
        self.moved_tokens += tokens
        num_bytes = tokens * self._block_bytes // self.block_size
        if num_bytes:
            # The step that follows reads the sequence at its new place.
            self.transfers.append(Transfer("copy", "copy", num_bytes, blocking=True))

    def _find(self, holding: GrowingRegion, blocks: int) -> bool:
        """Find a range of so many blocks for a region that is shorter: in place, elsewhere, or around it."""
        free, start, own = self._free, holding.start, holding.blocks
        behind = free.run_at(start + own)
        if own + behind >= blocks:
            free.take(start + own, blocks - own)
        elif free.fits(blocks):
            holding.start, _ = free.place(blocks)
            free.give(start, own)  # only now: a copy must not overlap what it copies
        elif free.run_before(start) + own + behind >= blocks:
            holding.start = start - free.run_before(start)
            free.give(start, own)
            free.take(holding.start, blocks)
        else:
            return False
        holding.blocks = blocks
        return True

    def _try(self, wanted: Sequence[tuple[GrowingRegion, int]]) -> bool:
        """Whether all these could be made so long, one after the other; leaves everything as it was."""
        done: list[tuple[GrowingRegion, Run]] = []
        possible = True
        for holding, blocks in wanted:
            was = holding.start, holding.blocks
            possible = self._find(holding, blocks)
            if not possible:
                break
            done.append((holding, was))
        for holding, (start, length) in reversed(done):
            self._free.give(holding.start, holding.blocks)
            self._free.take(start, length)
            holding.start, holding.blocks = start, length
        return possible
