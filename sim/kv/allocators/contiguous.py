"""One range for a sequence's whole life: how systems held KV before it was paged."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.kv.allocators.decision import Claim
from sim.kv.allocators.region import Region
from sim.kv.allocators.reserving import Reservation, Reserve, ReservingAllocator, fitting_reservation
from sim.kv.space.buddies import FreeBuddies
from sim.kv.space.regions import FreeRegions, Placement


class Contiguous(BaseModel):
    """One range of memory for a sequence's whole life, set aside when it is admitted."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["contiguous"] = "contiguous"
    reserve: Reserve = "max"
    """For how many tokens: engine.max_model_len, exactly those to come (an oracle), or a power of two of answer."""
    placement: Literal["first_fit", "best_fit", "buddy"] = "first_fit"
    """Where: the lowest address, the shortest free range, or ranges of powers of two (buddy)."""

    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        block_bytes: int,  # noqa: ARG002
    ) -> ContiguousAllocator:
        if self.placement == "buddy":
            space: Placement = FreeBuddies(num_blocks)
        else:
            space = FreeRegions(num_blocks, self.placement)
        reservation = fitting_reservation(self.reserve, num_blocks, block_size, max_model_len, space.largest)
        return ContiguousAllocator(num_blocks, block_size, reservation, space)


class ContiguousAllocator(ReservingAllocator):
    """A range of `space` for each sequence."""

    def __init__(self, num_blocks: int, block_size: int, reservation: Reservation, space: Placement) -> None:
        super().__init__(num_blocks, block_size, space)
        self._placement = space
        self._reservation = reservation

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:
        return self._placement.ever_fits(self._blocks(tokens, final_tokens))

    def can_hold(self, claim: Claim) -> bool:
        return self._placement.fits(self._blocks(claim.tokens, claim.final_tokens))

    def open(self, claim: Claim) -> Region:
        return Region(*self._placement.place(self._blocks(claim.tokens, claim.final_tokens)))

    def _give_back(self, holding: Region) -> None:
        self._placement.give(holding.start, holding.blocks)

    def _blocks(self, tokens: int, final_tokens: int) -> int:
        return self.blocks_for(self._reservation.tokens(tokens, final_tokens))
