"""What allocators have in common that keep a sequence's KV in one range of addresses.

Addresses are blocks: a range is whole blocks long and begins at a block, so that an engine whose kernels read through
a block table runs on it too. A sequence wastes less than a block by that.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.errors import InvariantError
from sim.kv.allocators.decision import Allocator, Holding
from sim.kv.space.regions import Run, Space, check_cover


class Region(Holding):
    """The range of one sequence: `blocks` from block `start` on; none where `blocks` is 0."""

    __slots__ = ("blocks", "start")

    def __init__(self, start: int, blocks: int) -> None:
        super().__init__()
        self.start = start
        self.blocks = blocks


class RegionAllocator(Allocator):
    """Counts tokens and knows its space; who takes what of the space, and when, is said by those that follow."""

    def __init__(self, num_blocks: int, block_size: int, space: Space) -> None:
        super().__init__(num_blocks, block_size)
        self._space = space
        self._step = 0
        self._growing = 0
        self._tokens = 0  # of all holdings, less the step at which it began for each that grows

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self._space.free

    @property
    def stored_tokens(self) -> int:
        return self._tokens + self._growing * self._step

    @property
    def largest_free_blocks(self) -> int:
        return self._space.largest

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def tokens_of(self, holding: Region) -> int:
        """Tokens that have KV now."""
        if holding.growing_since < 0:
            return holding.tokens
        return holding.tokens + self._step - holding.growing_since

    def _begin_growing(self, holding: Region) -> None:
        holding.growing_since = self._step
        self._growing += 1
        self._tokens -= self._step

    def held(self, holding: Region) -> int:
        return holding.blocks

    def block_table(self, holding: Region) -> list[int]:
        return list(range(holding.start, holding.start + self.blocks_for(self.tokens_of(holding))))

    def _check_regions(self, holdings: Sequence[Region]) -> None:
        free, held = self._space.free_runs(), self._held_runs(holdings)
        check_cover([*free, *held], self.num_blocks)
        if sum(length for _, length in free) != self._space.free:
            raise InvariantError(f"{self._space.free} blocks free do not match the free runs")
        if sum(map(self.tokens_of, holdings)) != self.stored_tokens:
            raise InvariantError(f"{self.stored_tokens} tokens stored do not match the sequences")
        for h in holdings:
            if self.tokens_of(h) > h.blocks * self.block_size:
                raise InvariantError(f"{self.tokens_of(h)} tokens in a region of {h.blocks} blocks")

    def _held_runs(self, holdings: Sequence[Region]) -> list[Run]:
        return [(h.start, h.blocks) for h in holdings if h.blocks]

    def _store(self, holding: Region, tokens: int) -> None:
        self._tokens += tokens - holding.tokens
        holding.tokens = tokens

    def _forget(self, holding: Region) -> None:
        """Count the tokens of a sequence, growing or not, as gone."""
        if holding.growing_since >= 0:
            holding.tokens += self._step - holding.growing_since
            holding.growing_since = -1
            self._growing -= 1
            self._tokens += self._step
        self._store(holding, 0)
