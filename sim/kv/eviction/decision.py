"""What an eviction policy is told, and what it decides.

A cache owns the blocks; a policy only ranks them. The same policy object serves the replay of a trace
(`sim.kv.replay.prefix_replay`), a simulated engine and a real one.

A block is an integer, equal for equal content and different for different tenants; the cache chooses what it
stands for. From `inserted` to `removed` a block is in the cache. In between it is either free to go or held by
running requests; only blocks that are free to go are ever named as victims. An inserted block is free to go until
it is `held`. So the life of a block in an engine is

    inserted, held | released | accessed, held | released | ... | (named by victims or expired) removed

and in a replay without timing, where nobody holds anything, `inserted | accessed | ... | removed`.

All notifications take runs of blocks in the order of their use, the first used first, so that a prompt costs one
call and not one per block. An engine releases a prompt from its tail to its head, so that the tail goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Eviction(Protocol):
    """An order of the blocks of one cache. State changes by notifications only; `victims` and `expired` ask.

    positions  where each block stands in the prompt of the request that uses it, counted in blocks from 0
    now_ns     simulated time; never decreases from call to call
    """

    def inserted(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:
        """Blocks that were not in the cache are now, used once and free to go."""

    def accessed(self, blocks: Sequence[int], positions: Sequence[int], now_ns: int) -> None:
        """Blocks of the cache, held or not, are used once more."""

    def held(self, blocks: Sequence[int]) -> None:
        """Blocks that were free to go no longer are."""

    def released(self, blocks: Sequence[int], now_ns: int) -> None:
        """Held blocks are free to go again. The use ends now: that renews recency, and counts no use."""

    def removed(self, blocks: Sequence[int]) -> None:
        """Blocks that were free to go have left the cache, for whatever reason."""

    def victims(self, count: int) -> list[int]:
        """Name up to `count` blocks to remove, the first to go first; fewer where fewer are free to go.

        The answer is what `count` single victims would be, each removed before the next is named.
        """

    def expired(self, now_ns: int) -> list[int]:
        """Name the blocks free to go that must not be hit any more; a cache asks before each look-up."""


class EvictionConfig(Protocol):
    """The part of a scenario that names an eviction policy."""

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> Eviction:
        """Make the policy of one cache of `num_blocks` blocks.

        `uses` are the blocks in the order of all their uses to come, where that is known: only an oracle reads it.
        """
