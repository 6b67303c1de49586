"""Slots by size class: the pool is shared out among classes of lengths, and a sequence takes a slot of its class.

A sequence's class is that of its final length, as an oracle knows it; an engine would have to predict it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from sim.kv.allocators.decision import Claim
from sim.kv.allocators.region import Region
from sim.kv.allocators.reserving import ReservingAllocator
from sim.kv.space.size_classes import SizeClasses, Slot, Windows

Bound = Annotated[int, Field(strict=True, ge=1, le=1 << 40)]
Share = Annotated[float, Field(gt=0, le=1)]


class SizeClassConfig(BaseModel):
    """Slots by classes of final lengths, which share the pool; shares follow demand."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: Literal["size_class"] = "size_class"
    bounds_tokens: tuple[Bound, ...] = Field((64, 512, 4096, 16_384), min_length=2)
    """Classes by final length: from each bound to below the next. The first has what is shorter, the last its end."""
    shares: tuple[Share, ...] = Field((0.35, 0.48, 0.17), validate_default=True)
    """Of the pool, for each class at the start."""
    window_s: float = Field(300.0, strict=True, gt=0, le=1e9)
    """Hit rates are judged over windows of this length."""
    min_hit_rate: float = Field(0.85, strict=True, ge=0, le=1)
    """A class with less in `windows` windows running gets idle space of another."""
    windows: int = Field(3, strict=True, ge=1)
    """How many windows with a low hit rate running make a class starve."""

    @field_validator("bounds_tokens")
    @classmethod
    def _upwards(cls, bounds: tuple[int, ...]) -> tuple[int, ...]:
        if any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"{list(bounds)} does not go upwards")
        return bounds

    @field_validator("shares")
    @classmethod
    def _one_a_class(cls, shares: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        bounds = info.data.get("bounds_tokens")
        if bounds is not None and len(shares) != len(bounds) - 1:
            raise ValueError(f"{len(bounds)} bounds_tokens make {len(bounds) - 1} classes, not {len(shares)}")
        if abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"{list(shares)} must sum to 1, not {sum(shares):g}")
        return shares

    def build(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,  # noqa: ARG002
        block_bytes: int,  # noqa: ARG002
    ) -> SizeClassAllocator:
        windows = Windows(round(self.window_s * 1e9), self.min_hit_rate, self.windows)
        return SizeClassAllocator(num_blocks, block_size, self.bounds_tokens, self.shares, windows)


class SlotRegion(Region):
    """A sequence in a slot."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__(slot.start, slot.length)
        self.slot = slot


class SizeClassAllocator(ReservingAllocator):
    """Slots of `SizeClasses`, in blocks."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        bounds_tokens: tuple[int, ...],
        shares: tuple[float, ...],
        windows: Windows,
    ) -> None:
        ends = [round(sum(shares[: k + 1]) * num_blocks) for k in range(len(shares) - 1)] + [num_blocks]
        owned = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        slots = [_slots(low, high, block_size) for low, high in pairwise(bounds_tokens)]
        self.classes = SizeClasses(owned, slots, windows)
        super().__init__(num_blocks, block_size, self.classes)
        self._bounds = bounds_tokens
        self._waited = -1  # the request that last found no slot

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:  # noqa: ARG002
        if final_tokens > self._bounds[-1]:
            return False
        return self.classes.ever_fits(self.blocks_for(final_tokens), self._class_of(final_tokens))

    def can_hold(self, claim: Claim) -> bool:
        tokens = claim.final_tokens
        if self.classes.find(self.blocks_for(tokens), self._class_of(tokens)) is not None:
            return True
        self._waited = claim.index
        return False

    def open(self, claim: Claim) -> SlotRegion:
        tokens = claim.final_tokens
        waited = self._waited == claim.index
        return SlotRegion(
            self.classes.take(
                self.blocks_for(tokens), self._class_of(tokens), waited=waited, now_ns=self.now_ns
            )
        )

    def _give_back(self, holding: Region) -> None:
        assert isinstance(holding, SlotRegion)
        self.classes.give(holding.slot)

    def check_integrity(self, holdings: Iterable[Region]) -> None:
        holdings = list(holdings)
        super().check_integrity(holdings)
        self.classes.check([h.slot for h in holdings if isinstance(h, SlotRegion)])

    def _class_of(self, tokens: int) -> int:
        """The class of a final length, at most the last bound."""
        inner = self._bounds[1:-1]
        return sum(tokens >= bound for bound in inner)


def _slots(low: int, high: int, block_size: int) -> list[int]:
    """Lengths of a class's slots in blocks: its lower bound, doubled as long as it is below the upper, and that."""
    slots = []
    while low < high:
        slots.append(-(-low // block_size))
        low *= 2
    slots.append(-(-high // block_size))
    return sorted(set(slots))
