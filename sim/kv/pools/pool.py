"""One tier's pool: its blocks, its contract, and what is asked of it in a step."""

from __future__ import annotations

from sim.kv.pools.lending import LendingCachedAllocator, LendingEvictingAllocator, LendingPagedAllocator
from sim.qos.contract import Amounts
from sim.qos.token_bucket import TokenBucket

PoolBlocks = LendingPagedAllocator | LendingCachedAllocator | LendingEvictingAllocator


class Pool:
    """A tier's KV memory on one engine.

    taken      seats that its sequences have
    wanted     blocks that its running sequences are about to take in this step, as far as known
    promised   blocks set aside for them, one sequence after another
    owed       blocks that the head of its queue lacks though the tier was promised them; None where it lacks none
    """

    __slots__ = (
        "_bucket",
        "blocks",
        "guarantee",
        "level",
        "most",
        "owed",
        "promised",
        "seats",
        "taken",
        "wanted",
    )

    def __init__(
        self, blocks: PoolBlocks, amounts: Amounts, seats: Amounts, bucket: TokenBucket | None = None
    ) -> None:
        self.blocks = blocks
        self.guarantee = amounts.guarantee
        self.most = amounts.most
        self.level = amounts.most if bucket is None else amounts.level  # up to where it needs no tokens
        self.seats = seats
        self._bucket = bucket
        self.taken = 0
        self.wanted = 0
        self.promised = 0
        self.owed: int | None = None

    @property
    def used(self) -> int:
        return self.blocks.used_blocks

    @property
    def beyond(self) -> bool:
        """Whether it holds more blocks than it was promised."""
        return self.blocks.used_blocks > self.guarantee

    @property
    def seated_beyond(self) -> bool:
        return self.taken > self.seats.guarantee

    def within(self, count: int) -> bool:
        """Whether it would hold no more than it was promised with `count` blocks more."""
        return self.blocks.used_blocks + count <= self.guarantee

    def may_take(self, count: int, now_ns: int) -> bool:
        """Whether its contract lets it take so many blocks now, wherever they come from."""
        after = self.blocks.used_blocks + count
        if after <= self.level or not count:
            return True
        if after > self.most:
            return False
        return self._bucket is None or self._bucket.holds(self._tokens(after), now_ns)

    def ready_ns(self, count: int) -> int | None:
        """When the bucket will have what `count` blocks more cost; None where it is not for want of tokens."""
        after = self.blocks.used_blocks + count
        if self._bucket is None or after > self.most:
            return None
        return self._bucket.ready_ns(self._tokens(after))

    def pay(self, before: int, now_ns: int) -> None:
        """Blocks were taken, from `before` on: those beyond the level cost a token each."""
        after = self.blocks.used_blocks
        if self._bucket is not None and after > self.level and after > before:
            self._bucket.take(after - max(before, self.level), now_ns)

    def _tokens(self, after: int) -> int:
        return max(after - max(self.blocks.used_blocks, self.level), 0)

    @property
    def reserved(self) -> int:
        """Blocks beyond those it holds that nobody else may take now: wanted, and promised to its tier."""
        spare = self.guarantee - self.blocks.used_blocks
        return min(self.wanted + (self.owed or 0), spare) if spare > 0 else 0

    @property
    def growth_room(self) -> int:
        """Blocks that it can take with nothing to decide: no block moves, no token is paid, no promise touched."""
        used = self.blocks.used_blocks
        border = self.guarantee if used <= self.guarantee else self.level
        return max(min(self.blocks.free_blocks, border - used), 0)
