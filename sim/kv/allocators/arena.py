"""Arenas: the sequences that are admitted together lie one behind the other, and go back together.

A step that admits opens an arena. Its first sequence is placed as any other; those that follow lie right behind it as
long as that is free, and else begin another piece of the arena elsewhere. Memory comes back when the last of the
arena's sequences has ended, all at once: nothing fragments until arenas end out of order, but the short answers of a
batch hold on to their memory as long as its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.region import Region
from sim.kv.allocators.reserving import Reservation, Reserve, ReservingAllocator, fitting_reservation
from sim.kv.space.regions import FittedPlacement, FreeRegions, Run


class Arena(BaseModel):
    """Sequences admitted in one step share an arena, which is freed as a whole when the last of them has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["arena"] = "arena"
    reserve: Reserve = "max"
    """For how many tokens: engine.max_model_len, exactly those to come (an oracle), or a power of two of answer."""
    placement: FittedPlacement = "first_fit"
    """Where an arena, or a further piece of it, begins: the lowest address, or the shortest free range."""
    alignment_tokens: int = Field(128, strict=True, ge=1, le=1_048_576)
    """A sequence begins at a multiple of it, in whole blocks."""

    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        block_bytes: int,  # noqa: ARG002
    ) -> ArenaAllocator:
        alignment = -(-self.alignment_tokens // block_size)
        most = num_blocks // alignment * alignment
        reservation = fitting_reservation(self.reserve, num_blocks, block_size, max_model_len, most)
        return ArenaAllocator(num_blocks, block_size, reservation, self.placement, alignment)


class _Batch:
    """An arena: its pieces, and how many of its sequences still run."""

    __slots__ = ("live", "pieces")

    def __init__(self) -> None:
        self.live = 0
        self.pieces: list[Run] = []


class ArenaRegion(Region):
    """A sequence's part of an arena."""

    __slots__ = ("batch",)

    def __init__(self, start: int, blocks: int, batch: _Batch) -> None:
        super().__init__(start, blocks)
        self.batch = batch


class ArenaAllocator(ReservingAllocator):
    """Arenas in one space; every length is a multiple of `alignment` blocks, so every address is."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        reservation: Reservation,
        placement: FittedPlacement,
        alignment: int,
    ) -> None:
        self._free = FreeRegions(num_blocks, placement)
        super().__init__(num_blocks, block_size, self._free)
        self._reservation = reservation
        self._alignment = alignment
        self._batch: _Batch | None = None  # of the step that is being planned

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:
        return self._blocks(tokens, final_tokens) <= self.num_blocks

    def can_hold(self, claim: Claim) -> bool:
        return self._blocks(claim.tokens, claim.final_tokens) <= self._free.largest

    def open(self, claim: Claim) -> ArenaRegion:
        blocks = self._blocks(claim.tokens, claim.final_tokens)
        if self._batch is None:
            self._batch = _Batch()
        pieces = self._batch.pieces
        end = sum(pieces[-1]) if pieces else -1
        if self._free.run_at(end) >= blocks:
            self._free.take(end, blocks)
            pieces[-1] = pieces[-1][0], pieces[-1][1] + blocks
            start = end
        else:
            start, _ = self._free.place(blocks)
            pieces.append((start, blocks))
        self._batch.live += 1
        return ArenaRegion(start, blocks, self._batch)

    def grow(self, steps: int) -> None:
        self._batch = None  # whoever is admitted from now on is so in another step
        super().grow(steps)

    def _give_back(self, holding: Region) -> None:
        assert isinstance(holding, ArenaRegion)
        batch = holding.batch
        batch.live -= 1
        if not batch.live:
            for start, length in batch.pieces:
                self._free.give(start, length)
            if batch is self._batch:
                self._batch = None

    def _held_runs(self, holdings: Sequence[Region]) -> list[Run]:
        """Arenas as a whole; what has ended in them is held too."""
        batches: dict[_Batch, list[Run]] = {}
        for h in holdings:
            assert isinstance(h, ArenaRegion)
            batches.setdefault(h.batch, []).append((h.start, h.blocks))
        for batch, regions in batches.items():
            end = 0
            for start, length in sorted(regions):
                inside = any(s <= start and start + length <= s + n for s, n in batch.pieces)
                if start < end or not inside or start % self._alignment or batch.live != len(regions):
                    raise InvariantError(f"region {start}+{length} does not lie in its arena {batch.pieces}")
                end = start + length
        return [piece for batch in batches for piece in batch.pieces]

    def _blocks(self, tokens: int, final_tokens: int) -> int:
        blocks = self.blocks_for(self._reservation.tokens(tokens, final_tokens))
        return -(-blocks // self._alignment) * self._alignment
