"""Pools of KV blocks behind one allocator: one for each lane of the queue, each with a contract.

What a pool holds up to its guarantee is its own whatever others do. Beyond that it borrows: blocks that others do not
use, up to its most, and beyond its level against tokens. Where one that is within its guarantee lacks a block, or a
seat, that others hold beyond theirs, these give way: free blocks move at once, else the latest sequences of such
pools are preempted until there is room. A request that waits within its guarantee is admitted one step after it was
found to lack something at the latest; until then nobody else can take what it lacks.

Steps may be taken together only while every pool grows into free blocks of its own, on the same side of its guarantee
and without paying: so it does not matter how many are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.errors import InvariantError
from sim.kv.allocators.decision import Allocator, Claim, Contents, Memory
from sim.kv.allocators.paged import PagedHolding
from sim.kv.pools.pool import Pool


class PooledAllocator(Allocator):
    """`pools` share `num_blocks` blocks and `max_num_seqs` seats; `spare` are ids of blocks that belong to none."""

    def __init__(
        self, num_blocks: int, block_size: int, pools: Sequence[Pool], max_num_seqs: int, spare: Contents
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.pools = tuple(pools)
        self._seats = max_num_seqs
        self._spare = spare
        self._lent_out = any(pool.most > pool.guarantee for pool in pools)

    # How full it is.

    @property
    def used_blocks(self) -> int:
        return sum(pool.blocks.used_blocks for pool in self.pools)

    @property
    def stored_tokens(self) -> int:
        return sum(pool.blocks.stored_tokens for pool in self.pools)

    @property
    def largest_free_blocks(self) -> int:
        """Most that one pool could come to hold more, whatever its tokens."""
        free = self.free_blocks
        return max(min(pool.most - pool.used, free) for pool in self.pools)

    @property
    def cached_blocks(self) -> int:
        return sum(pool.blocks.cached_blocks for pool in self.pools)

    def memory(self) -> Memory:
        used, stored, cached = 0, 0, 0
        for pool in self.pools:
            pool.blocks.now_ns = self.now_ns
            of_pool = pool.blocks.memory()
            used += of_pool[0]
            stored += of_pool[1]
            cached += of_pool[3]
        free = self.num_blocks - used
        largest = max(min(pool.most - pool.blocks.used_blocks, free) for pool in self.pools)
        return used, stored, largest, cached

    def pool_blocks(self) -> tuple[int, ...]:
        return tuple(pool.blocks.used_blocks for pool in self.pools)

    # One sequence.

    def ever_holds(self, tokens: int, final_tokens: int) -> bool:
        return any(self.ever_holds_in(lane, tokens, final_tokens) for lane in range(len(self.pools)))

    def ever_holds_in(self, lane: int, tokens: int, final_tokens: int) -> bool:  # noqa: ARG002
        return -(-final_tokens // self.block_size) <= self.pools[lane].most

    def find_prefix(self, claim: Claim) -> int:
        blocks = self.pools[claim.lane].blocks
        blocks.now_ns = self.now_ns
        return blocks.find_prefix(claim)

    def can_hold(self, claim: Claim) -> bool:
        pool = self.pools[claim.lane]
        need = pool.blocks.claimed_blocks(claim)
        pool.owed = None
        if pool.taken >= pool.seats.most or pool.used + need > pool.most:
            return False
        if not pool.may_take(need, self.now_ns):
            ready_ns = pool.ready_ns(need)
            if ready_ns is not None and (self.wake_ns is None or ready_ns < self.wake_ns):
                self.wake_ns = ready_ns
            return False
        blocks = sum(
            p.blocks.used_blocks + p.reserved for p in self.pools
        )  # nothing is reserved for this one
        seats = sum(p.taken + _owed_seat(p) for p in self.pools)
        if blocks + need <= self.num_blocks and seats < self._seats:
            return True
        if pool.within(need) and pool.taken < pool.seats.guarantee:
            pool.owed = need
        return False

    def open(self, claim: Claim) -> PagedHolding:
        pool = self.pools[claim.lane]
        before = pool.used
        pool.blocks.now_ns = self.now_ns
        holding = pool.blocks.open(claim)
        holding.lane = claim.lane
        pool.taken += 1
        pool.owed = None
        pool.pay(before, self.now_ns)
        return holding

    def extend(self, holding: PagedHolding, tokens: int) -> bool:
        pool = self.pools[holding.lane]
        missing = pool.blocks.missing_blocks(holding, tokens)
        before = pool.used
        if not pool.may_take(missing, self.now_ns) or self.used_blocks + missing > self.num_blocks:
            return False
        self._supply(pool, missing)
        pool.blocks.now_ns = self.now_ns
        pool.blocks.extend(holding, tokens)
        pool.pay(before, self.now_ns)
        return True

    def start_growing(self, holding: PagedHolding) -> None:
        self.pools[holding.lane].blocks.start_growing(holding)

    def held(self, holding: PagedHolding) -> int:
        return self.pools[holding.lane].blocks.held(holding)

    def release(self, holding: PagedHolding) -> None:
        pool = self.pools[holding.lane]
        pool.blocks.now_ns = self.now_ns
        pool.blocks.release(holding)
        pool.taken -= 1

    def block_table(self, holding: PagedHolding) -> list[int]:
        return self.pools[holding.lane].blocks.block_table(holding)

    # All that run.

    def begin_step(self) -> None:
        self.wake_ns = None  # until the head of a lane is found to wait for tokens

    @property
    def expects_transfers(self) -> bool:
        return self.wake_ns is not None

    def has_room(self, extensions: Sequence[tuple[PagedHolding, int]]) -> bool:
        self._ask(extensions)
        now = self.now_ns
        if not all(pool.may_take(pool.wanted, now) for pool in self.pools):
            return False
        return not self._blocks_lack and not self._seats_lack

    def _ask(self, extensions: Sequence[tuple[PagedHolding, int]]) -> None:
        """Note what the running sequences of each pool are about to take."""
        for pool in self.pools:
            pool.wanted = pool.blocks.growth(1)
            pool.promised = 0
        for holding, tokens in extensions:
            pool = self.pools[holding.lane]
            pool.wanted += pool.blocks.missing_blocks(holding, tokens)

    @property
    def _blocks_lack(self) -> bool:
        return sum(p.blocks.used_blocks + max(p.wanted, p.reserved) for p in self.pools) > self.num_blocks

    @property
    def _seats_lack(self) -> bool:
        return sum(pool.taken + _owed_seat(pool) for pool in self.pools) > self._seats

    @property
    def recalls(self) -> bool:
        return self._lent_out and any(pool.beyond or pool.seated_beyond for pool in self.pools)

    def start_recall(self, prompts: Sequence[tuple[PagedHolding, int]]) -> None:
        self._ask(prompts)

    def owes(self, holding: PagedHolding) -> bool:
        pool = self.pools[holding.lane]
        if pool.beyond and sum(p.blocks.used_blocks + p.reserved for p in self.pools) > self.num_blocks:
            return True
        return pool.seated_beyond and self._seats_lack

    def start_room(self) -> None:
        for pool in self.pools:
            pool.promised = 0

    def promise(self, holding: PagedHolding, tokens: int | None) -> bool:
        pool = self.pools[holding.lane]
        promised = pool.promised + pool.blocks.missing_blocks(holding, tokens)
        if not pool.may_take(promised, self.now_ns):
            return False
        if promised > pool.reserved:
            others = sum(
                p.blocks.used_blocks + max(p.promised, p.reserved) for p in self.pools if p is not pool
            )
            if pool.used + promised + others > self.num_blocks:
                return False
        pool.promised = promised
        return True

    def yields_to(self, victim: PagedHolding, holding: PagedHolding) -> bool:
        """Others have given way before; what is still short is short in the pool itself."""
        return victim.lane == holding.lane

    def growth_limit(self, steps: int) -> int:
        for pool in self.pools:
            if pool.owed is not None:
                return 0
            steps = pool.blocks.growth_within(pool.growth_room, steps)
        return steps

    def grow(self, steps: int) -> None:
        for pool in self.pools:
            need = pool.blocks.growth(steps)
            pool.wanted = pool.promised = 0
            if need:
                before = pool.used
                self._supply(pool, need)
                pool.blocks.grow(steps)
                pool.pay(before, self.now_ns)
            else:
                pool.blocks.grow(steps)

    def _supply(self, pool: Pool, count: int) -> None:
        """Bring as many free blocks into a pool as it is about to take: first those that others borrowed."""
        missing = count - pool.blocks.free_blocks
        if missing <= 0:
            return
        ids = self._spare[:missing]
        if ids.size:
            self._spare = self._spare[missing:]
            pool.blocks.take_in(ids)
            missing -= ids.size
        lenders = [p for p in self.pools if p is not pool and p.blocks.free_blocks]
        lenders.sort(key=lambda p: p.guarantee - p.blocks.present_blocks)  # the furthest beyond its own first
        for lender in lenders:
            if not missing:
                return
            moved = min(missing, lender.blocks.free_blocks)
            lender.blocks.now_ns = self.now_ns
            pool.blocks.take_in(lender.blocks.part_with(moved))
            missing -= moved
        if missing:
            raise InvariantError(f"{missing} blocks taken beyond the {self.num_blocks} of all pools")

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        of_pool: list[list[PagedHolding]] = [[] for _ in self.pools]
        for holding in holdings:
            of_pool[holding.lane].append(holding)
        present = self._spare.size
        for pool, held in zip(self.pools, of_pool, strict=True):
            pool.blocks.check_integrity(held)
            present += pool.blocks.present_blocks
            if pool.taken != len(held) or pool.taken > pool.seats.most or pool.used > pool.most:
                raise InvariantError(f"a pool with {pool.used} blocks of {pool.most} and {pool.taken} seats")
        if present != self.num_blocks:
            raise InvariantError(f"{present} blocks in all pools instead of {self.num_blocks}")


class CachedPooledAllocator(PooledAllocator):
    """Pools with prefix caches, each for its own."""

    finds_prefixes = True


def _owed_seat(pool: Pool) -> int:
    return int(pool.owed is not None and pool.taken < pool.seats.guarantee)
