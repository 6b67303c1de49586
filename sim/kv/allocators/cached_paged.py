"""Paged blocks with a prefix cache: full blocks stay findable by their content until they are used again.

As in vLLM's block pool: a block with no holder waits in one queue, whether it holds something or not; whoever needs a
block gets the one that has been free for the longest time, and what it held is forgotten then. A sequence gives its
blocks back from the tail to the head, so that the end of a prompt goes before its beginning. A prompt's blocks are
findable from the step that computes them; a block that a sequence fills while it decodes, from its end on, since
nothing that continues it can come before.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sim.errors import InvariantError
from sim.kv.allocators.decision import NO_BLOCKS, Claim, Contents, Memory
from sim.kv.allocators.paged import PagedAllocator, PagedHolding
from sim.kv.free_queue import FreeQueue
from sim.kv.prefix_index import PrefixIndex


class CachedHolding(PagedHolding):
    """What one sequence holds, block by block. `slots` may lack the latest blocks of a sequence that grows."""

    __slots__ = ("contents", "slots", "stored")

    def __init__(self, contents: Contents) -> None:
        super().__init__()
        self.contents = contents
        self.slots = NO_BLOCKS
        self.stored = 0  # leading blocks whose content is in the index


class CachedPagedAllocator(PagedAllocator):
    """`PagedAllocator` that finds prefixes again."""

    finds_prefixes = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._queue = FreeQueue(num_blocks)
        self._index = PrefixIndex(num_blocks)
        self._holders = np.zeros(num_blocks, dtype=np.int64)
        self._idle_known = 0
        self._grown: list[Contents] = []  # blocks taken by sequences that grow, not yet told apart
        self._grown_count = 0

    @property
    def cached_blocks(self) -> int:
        return self._idle_known

    def memory(self) -> Memory:
        used, stored, free, _ = super().memory()
        return used, stored, free, self.cached_blocks

    def find_prefix(self, claim: Claim) -> int:
        """At least one token is left to compute."""
        assert claim.contents is not None
        claim.prefix = self._index.leading_run(claim.contents[: (claim.tokens - 1) // self.block_size])
        return claim.prefix.size * self.block_size

    def watch_cache(self) -> None:
        """Note from now on what comes into the cache and goes, for `cache_changes`."""
        self._index.watch()

    def cache_changes(self) -> tuple[set[int], set[int]]:
        """Contents that have come and that have gone since the last call."""
        return self._index.changes()

    def claimed_blocks(self, claim: Claim) -> int:
        """The blocks beyond the prefix, and those of the prefix that are free themselves."""
        prefix = claim.prefix
        idle = int((self._holders[prefix] == 0).sum())
        return -(-claim.tokens // self.block_size) - prefix.size + idle

    def open(self, claim: Claim) -> CachedHolding:
        holding = CachedHolding(NO_BLOCKS if claim.contents is None else claim.contents)
        self._share(holding, claim.prefix)
        return holding

    def _share(self, holding: CachedHolding, prefix: Contents) -> None:
        """Let a sequence that holds nothing yet hold the blocks of `prefix`, beside whoever else does."""
        idle = prefix[self._holders[prefix] == 0]
        self._claim(idle)
        self._free -= idle.size
        self._shares += prefix.size - idle.size
        self._holders[prefix] += 1
        holding.slots = prefix
        holding.stored = holding.blocks = prefix.size
        holding.tokens = prefix.size * self.block_size
        self._tokens += holding.tokens

    def extend(self, holding: PagedHolding, tokens: int) -> bool:
        assert isinstance(holding, CachedHolding)
        missing = -(-tokens // self.block_size) - holding.blocks
        if missing > self._free:
            return False
        if missing:
            holding.slots = np.concatenate([holding.slots, self._take(missing)])
            holding.blocks += missing
        self._tokens += tokens - holding.tokens
        holding.tokens = tokens
        self._store(holding, tokens)
        return True

    def release(self, holding: PagedHolding) -> None:
        """Give the blocks back, the last one to be used again first."""
        assert isinstance(holding, CachedHolding)
        self._tell_apart(holding)
        self._stop_growing(holding)
        self._store(holding, holding.tokens)
        slots = holding.slots[::-1]
        self._holders[slots] -= 1
        idle = slots[self._holders[slots] == 0]
        self._give_up(idle)
        self._free += idle.size
        self._shares -= slots.size - idle.size
        self._tokens -= holding.tokens
        holding.slots = NO_BLOCKS
        holding.tokens = holding.blocks = holding.stored = 0

    def block_table(self, holding: PagedHolding) -> list[int]:
        assert isinstance(holding, CachedHolding)
        self._tell_apart(holding)
        ids: list[int] = holding.slots.tolist()
        return ids

    def warm_up(self, contents: Contents, tokens: int) -> None:
        """Leave the cache as if a sequence of `tokens` tokens had run alone, as far as it fits."""
        claim = Claim(0, tokens, tokens, contents=contents)
        self.find_prefix(claim)
        if self.can_hold(claim):
            holding = self.open(claim)
            self.extend(holding, tokens)
            self.release(holding)

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        """Raise InvariantError unless `holdings`, being all there are, account for every block."""
        own = [h for h in holdings if isinstance(h, CachedHolding)]
        self._check_growth(own)
        told = np.concatenate([NO_BLOCKS, *(h.slots for h in own)])
        holders = np.bincount(told, minlength=self.num_blocks)
        grown = np.concatenate([NO_BLOCKS, *self._grown])
        holders[grown] += 1
        if not np.array_equal(holders, self._holders):
            raise InvariantError("holders of blocks do not match the sequences")
        if (
            sum(self.held(h) - h.slots.size for h in own) != self._grown_count
            or grown.size != self._grown_count
        ):
            raise InvariantError(f"{self._grown_count} blocks of growth do not match the sequences")
        shares = int((holders - 1).clip(0).sum())
        if shares != self._shares:
            raise InvariantError(f"{self._shares} shares of blocks instead of {shares}")
        free = np.sort(self._free_slots())
        if self._index.known(free) != self._count_idle():
            raise InvariantError(f"{self._count_idle()} free blocks hold something by count")
        if not np.array_equal(free, np.flatnonzero(holders == 0)) or free.size != self._free:
            raise InvariantError(f"the free queue does not hold the {self._free} free blocks")

    def _count_idle(self) -> int:
        return self._idle_known

    def _free_slots(self) -> Contents:
        return self._queue.slots()

    def _take(self, count: int) -> Contents:
        slots = self._next_free(count)
        self._holders[slots] = 1
        self._free -= count
        return slots

    def _next_free(self, count: int) -> Contents:
        """Take blocks out of the free ones; what they held is forgotten."""
        slots = self._queue.pop(count)
        self._idle_known -= self._index.forget(slots)
        return slots

    def _peek_free(self, count: int) -> Contents:
        """Blocks that `_next_free` would take, in order; fewer where there are fewer."""
        return self._queue.peek(count)

    def _claim(self, idle: Contents) -> None:
        """Free blocks get a holder again, and keep what they hold."""
        self._queue.remove(idle)
        self._idle_known -= idle.size

    def _give_up(self, idle: Contents) -> None:
        """Blocks have no holder any more; the first of them is to be used again first."""
        self._queue.push(idle)
        self._idle_known += self._index.known(idle)

    def _take_for_growth(self, count: int) -> None:
        if count > self._free:
            raise InvariantError(f"{count - self._free} blocks taken beyond the pool of {self.num_blocks}")
        self._grown.append(self._take(count))
        self._grown_count += count

    def _tell_apart(self, holding: CachedHolding) -> None:
        """Give a sequence its share of the blocks that growth took."""
        lacking = self.held(holding) - holding.slots.size
        if lacking:
            pool = np.concatenate(self._grown)
            holding.slots = np.concatenate([holding.slots, pool[:lacking]])
            self._grown = [pool[lacking:]]
            self._grown_count -= lacking

    def _store(self, holding: CachedHolding, tokens: int) -> None:
        """Make full blocks findable whose content is known."""
        full = min(tokens // self.block_size, holding.contents.size)
        if full > holding.stored:
            first = holding.stored
            self._remember(holding.contents[first:full], holding.slots[first:full], first)
            holding.stored = full

    def _remember(self, contents: Contents, slots: Contents, first: int) -> None:  # noqa: ARG002  for policies
        """Make blocks findable; `first` is the position of the first of them in its sequence."""
        self._index.store(contents, slots)
