"""What allocators have in common that set aside, at admission, all that a sequence will ever hold.

Nothing runs short afterwards, so nobody is preempted for want of memory; the price is memory that holds no token yet,
or never will.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

from sim.errors import ConfigError, InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.region import Region, RegionAllocator

Reserve = Literal["max", "exact", "power_of_two"]


class Reservation:
    """How many tokens a sequence is given room for.

    max           what the longest sequence could need: all that a system knows that does not know the answer's length
    exact         what it will hold: an oracle
    power_of_two  its prompt, and its answer's length rounded up to a power of two: at most twice the answer

    These are the assumptions Orca (Max), Orca (Oracle) and Orca (Pow2) of Kwon et al., "Efficient Memory Management for
    Large Language Model Serving with PagedAttention", SOSP 2023, section 6.1.
    """

    def __init__(self, rule: Reserve, max_model_len: int) -> None:
        self._rule = rule
        self._max_model_len = max_model_len

    def tokens(self, tokens: int, final_tokens: int) -> int:
        """Tokens set aside for a sequence that comes with `tokens` and ends with `final_tokens`."""
        if self._rule == "max":
            return self._max_model_len
        if self._rule == "exact":
            return final_tokens
        answer = final_tokens - tokens + 1  # of which the last is never stored
        return min(tokens + (1 << (answer - 1).bit_length()) - 1, self._max_model_len)


def fitting_reservation(
    rule: Reserve, num_blocks: int, block_size: int, max_model_len: int, most_blocks: int
) -> Reservation:
    """Make a rule for a pool; ConfigError where it could hold no sequence, `most_blocks` being the longest range."""
    if rule == "max" and -(-max_model_len // block_size) > most_blocks:
        raise ConfigError(
            f"policies.allocator.reserve: max sets aside engine.max_model_len ({max_model_len} tokens) for each "
            f"sequence, and of the {num_blocks} KV blocks at most {most_blocks * block_size} tokens can be had in one "
            "range; set a smaller engine.max_model_len"
        )
    return Reservation(rule, max_model_len)


class ReservingAllocator(RegionAllocator):
    """Its sequences have room for all their tokens from the first on."""

    @abstractmethod
    def open(self, claim: Claim) -> Region:
        """Take the whole region of a sequence."""

    @abstractmethod
    def _give_back(self, holding: Region) -> None:
        """A sequence has ended that held this region."""

    def extend(self, holding: Region, tokens: int) -> bool:
        if tokens > holding.blocks * self.block_size:
            raise InvariantError(f"{tokens} tokens asked of a region of {holding.blocks} blocks")
        self._store(holding, tokens)
        return True

    def start_growing(self, holding: Region) -> None:
        self._begin_growing(holding)

    def release(self, holding: Region) -> None:
        self._forget(holding)
        self._give_back(holding)
        holding.blocks = 0

    def has_room(self, extensions: Sequence[tuple[Region, int]]) -> bool:  # noqa: ARG002
        return True

    def start_room(self) -> None:
        pass

    def promise(self, holding: Region, tokens: int | None) -> bool:  # noqa: ARG002
        return True

    def growth_limit(self, steps: int) -> int:
        return steps

    def grow(self, steps: int) -> None:
        self._step += steps

    def check_integrity(self, holdings: Iterable[Region]) -> None:
        self._check_regions(list(holdings))
