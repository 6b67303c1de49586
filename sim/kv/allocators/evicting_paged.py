"""A prefix cache whose blocks go in the order of an eviction policy, instead of the engine's one queue.

Blocks that hold nothing go first, the longest free first. Content is stored once: a second block with the same
content is one that holds nothing, and so is one whose content nobody else can have.

What has expired is found no more from that instant on. Its blocks come to hold nothing when next a sequence comes, or
content does: never at a look-up, of which there are more or fewer as steps are taken one by one or many at once.
"""

from __future__ import annotations

import numpy as np

from sim.kv.allocators.cached_paged import CachedHolding, CachedPagedAllocator
from sim.kv.allocators.decision import Claim, Contents
from sim.kv.eviction.decision import Eviction


class EvictingPagedAllocator(CachedPagedAllocator):
    """`CachedPagedAllocator` under a policy; the policy knows blocks by their content."""

    def __init__(self, num_blocks: int, block_size: int, policy: Eviction) -> None:
        super().__init__(num_blocks, block_size)
        self._policy = policy
        self._idle: set[int] = set()  # contents of blocks without a holder

    @property
    def cached_blocks(self) -> int:
        return len(self._idle) - len(self._policy.expired(self.now_ns))

    def find_prefix(self, claim: Claim) -> int:
        super().find_prefix(claim)
        expired = self._policy.expired(self.now_ns)
        if expired:
            gone = np.isin(self._index.content_of(claim.prefix), expired)
            if gone.any():
                claim.prefix = claim.prefix[: gone.argmax()]
        return claim.prefix.size * self.block_size

    def cache_changes(self) -> tuple[set[int], set[int]]:
        self._drop_expired()
        return super().cache_changes()

    def _drop_expired(self) -> None:
        expired = self._policy.expired(self.now_ns)
        if expired:
            self._queue.push(self._evict(expired))

    def _share(self, holding: CachedHolding, prefix: Contents) -> None:
        self._drop_expired()
        contents = self._index.content_of(prefix).tolist()
        self._policy.accessed(contents, range(len(contents)), self.now_ns)
        super()._share(holding, prefix)

    def _claim(self, idle: Contents) -> None:
        contents = self._index.content_of(idle).tolist()
        self._policy.held(contents)
        self._idle.difference_update(contents)

    def _give_up(self, idle: Contents) -> None:
        contents = self._index.content_of(idle)
        known = contents >= 0
        self._queue.push(idle[~known])
        kept = contents[known].tolist()
        self._policy.released(kept, self.now_ns)
        self._idle.update(kept)

    def _next_free(self, count: int) -> Contents:
        blank = self._queue.pop(min(count, len(self._queue)))
        if blank.size == count:
            return blank
        return np.concatenate([blank, self._evict(self._policy.victims(count - blank.size))])

    def _peek_free(self, count: int) -> Contents:
        blank = self._queue.peek(count)
        if blank.size == count:
            return blank
        return np.concatenate([blank, self._index.slots_of(self._policy.victims(count - blank.size))])

    def _evict(self, contents: list[int]) -> Contents:
        slots = self._index.slots_of(contents)
        self._policy.removed(contents)
        self._idle.difference_update(contents)
        self._index.forget(slots)
        return slots

    def _remember(self, contents: Contents, slots: Contents, first: int) -> None:
        self._drop_expired()  # or what comes now would seem to be there already
        new = self._index.unknown(contents) & (contents >= 0)
        kept = contents[new].tolist()
        self._index.store(contents[new], slots[new])
        self._policy.inserted(kept, (first + np.flatnonzero(new)).tolist(), self.now_ns)
        self._policy.held(kept)

    def _count_idle(self) -> int:
        return len(self._idle)

    def _free_slots(self) -> Contents:
        return np.concatenate([self._queue.slots(), self._index.slots_of(sorted(self._idle))])
