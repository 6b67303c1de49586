"""A prefix cache whose full blocks are copied to host memory, and from there to disk.

As with vLLM's offloading connector and LMCache: a block is copied when it has been computed (write-through), or before
it is overwritten (write-back). What it holds is not overwritten while it is being copied. A sequence that ends keeps
its blocks until its copies have landed. One that is preempted gives them away at once: the next step then waits for
the copies, as does the step that overwrites a block which is written back.

The blocks of an answer are findable, and copied, when it ends. Contents that no other request can have are kept too:
an engine cannot know them, and a preempted sequence finds its own again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from sim.kv.allocators.cached_paged import CachedHolding, CachedPagedAllocator
from sim.kv.allocators.decision import Contents
from sim.kv.allocators.paged import PagedHolding
from sim.kv.eviction.decision import Eviction
from sim.kv.tiers.account import TierAccount
from sim.kv.tiers.lower import LowerTiers
from sim.kv.tiers.movement import Copy, Demotion, Load
from sim.kv.tiers.setup import TierSetup
from sim.kv.tiers.store import TierStore
from sim.kv.transfer import Route, Transfer


class TieredHolding(CachedHolding):
    """What one sequence holds in HBM.

    copied   leading blocks that were looked at for write-through
    copies   copies of its blocks that are on their way
    loads    that it waits for
    """

    __slots__ = ("copied", "copies", "index", "loads")

    def __init__(self, contents: Contents, index: int) -> None:
        super().__init__(contents)
        self.index = index
        self.copied = 0
        self.copies: list[Transfer] = []
        self.loads: list[Load] = []


class OffloadingPagedAllocator(CachedPagedAllocator):
    """`CachedPagedAllocator` above `lower` tiers, to which it writes; `account` says what moved."""

    def __init__(self, num_blocks: int, block_size: int, tiers: TierSetup, *policy: Eviction) -> None:
        super().__init__(num_blocks, block_size, *policy)
        self.lower: LowerTiers = tiers.stores()
        self.account = TierAccount()
        self._swapping = tiers.swapping
        self._write_back = tiers.write == "back"
        self._sees_losses = self._write_back
        self._block_bytes = tiers.reload.block_bytes
        self._position = np.zeros(num_blocks, dtype=np.int64)  # of what a block holds, in its sequence
        self._fresh: dict[TieredHolding, None] = {}  # with blocks that were not looked at for write-through
        self._ended: dict[TieredHolding, None] = {}  # that keep their blocks for the copies
        self._swapped: set[int] = set()  # requests whose KV a preemption left below
        self._on_their_way: dict[Transfer, None] = {}

    # One sequence.

    def extend(self, holding: PagedHolding, tokens: int) -> bool:
        if not super().extend(holding, tokens):
            return False
        if not self._write_back:
            self._fresh[cast("TieredHolding", holding)] = None
        return True

    def release(self, holding: PagedHolding) -> None:
        """Give the blocks back, once the copies of what they hold have landed."""
        assert isinstance(holding, TieredHolding)
        self._settle(holding)
        if not self._write_back:
            self._copy_new(holding)
        if holding.copies:
            self._ended[holding] = None
        else:
            self._give_back(holding)

    def _give_back(self, holding: TieredHolding) -> None:
        super().release(holding)

    def preempt(self, holding: PagedHolding) -> None:
        assert isinstance(holding, TieredHolding)
        self._settle(holding)
        full = holding.stored
        host = self.lower.host
        unknown = sum(not host.knows(content) for content in holding.contents[:full].tolist())
        if self._swapping.pays(holding.tokens, full, unknown):
            self.account.swapped_out += self._copy_out(holding, 0, full, "swap_out")
            self._swapped.add(holding.index)
        for transfer in holding.copies:
            transfer.blocking = True
        self._give_back(holding)

    # All that run.

    def begin_step(self) -> None:
        for holding in [holding for holding in self._fresh if not holding.loads]:
            del self._fresh[holding]
            self._copy_new(holding)

    def growth_limit(self, steps: int) -> int:
        """A step that would overwrite what no other tier has is looked at on its own."""
        limit = super().growth_limit(steps)
        need = self.growth(limit) if self._write_back and limit else 0
        safe = self._free_without_copy(need)
        return self.growth_within(safe, limit) if safe < need else limit

    # Transfers.

    @property
    def expects_transfers(self) -> bool:
        return bool(self._on_their_way)

    def landed(self, transfer: Transfer) -> None:
        del self._on_their_way[transfer]
        if isinstance(transfer.payload, Copy):
            self._copied(transfer, transfer.payload)
        elif isinstance(transfer.payload, Demotion):
            self.lower.demoted(transfer.payload, self.now_ns)

    def _ask(
        self, owner: str, route: Route, blocks: int, payload: object, *, blocking: bool = False
    ) -> Transfer:
        transfer = Transfer(owner, route, blocks * self._block_bytes, blocking, payload)
        self.transfers.append(transfer)
        self._on_their_way[transfer] = None
        return transfer

    def _step_waits(self) -> bool:
        return any(transfer.blocking for transfer in self._on_their_way)

    # Books.

    def warm_up(self, contents: Contents, tokens: int) -> None:
        """Leave all tiers as if a sequence of `tokens` tokens had run alone, as far as it fits."""
        super().warm_up(contents, tokens)
        self.begin_step()
        while self.transfers:
            taken, self.transfers = self.transfers, []
            for transfer in taken:
                self.landed(transfer)
        self.account = TierAccount()
        for store in self._stores:
            store.restart_account(self.now_ns)

    def tier_account(self, end_ns: int) -> TierAccount:
        account = replace(self.account)
        account.host_used_block_ns = self.lower.host.used_to(end_ns)
        account.host_peak_blocks = self.lower.host.peak_blocks
        if self.lower.disk is not None:
            account.disk_used_block_ns = self.lower.disk.used_to(end_ns)
            account.disk_peak_blocks = self.lower.disk.peak_blocks
        account.dropped += self.lower.dropped
        return account

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        super().check_integrity([*holdings, *self._ended])
        self.lower.check_integrity()

    @property
    def _stores(self) -> list[TierStore]:
        return [self.lower.host] if self.lower.disk is None else [self.lower.host, self.lower.disk]

    # Copies to host memory.

    def _settle(self, holding: TieredHolding) -> None:
        """Say what a sequence holds that grows no more."""
        self._tell_apart(holding)
        self._stop_growing(holding)
        holding.blocks = holding.slots.size
        self._store(holding, holding.tokens)
        self._fresh.pop(holding, None)

    def _copy_new(self, holding: TieredHolding) -> None:
        self.account.offloaded += self._copy_out(holding, holding.copied, holding.stored, "offload")
        holding.copied = holding.stored

    def _copy_out(self, holding: TieredHolding, first: int, end: int, owner: str) -> int:
        """Copy of these blocks those that host memory lacks; how many there is room for."""
        host = self.lower.host
        new: dict[int, int] = {}
        for position, content in enumerate(holding.contents[first:end].tolist(), first):
            if not host.knows(content):
                new.setdefault(content, position)
        count = self._reserve(list(new), list(new.values()))
        if count:
            slots = holding.slots[list(new.values())[:count]].tolist()
            copy = Copy(list(new)[:count], slots, holding)
            holding.copies.append(self._ask(owner, "offload", count, copy))
        return count

    def _reserve(self, contents: list[int], positions: list[int]) -> int:
        """Make room in host memory; what leaves it for the disk is on its way."""
        if not contents:
            return 0
        count, demotion = self.lower.reserve(contents, positions, self.now_ns)
        self.account.dropped += len(contents) - count
        if demotion is not None:
            self.account.demoted += len(demotion.contents)
            self._ask("demote", "disk_store", len(demotion.contents), demotion)
        return count

    def _copied(self, transfer: Transfer, copy: Copy) -> None:
        self.lower.host.written(copy.contents, self.now_ns)
        holding = copy.holding
        if isinstance(holding, TieredHolding):
            holding.copies.remove(transfer)
            if holding in self._ended and not holding.copies:
                del self._ended[holding]
                self._give_back(holding)

    def _free_without_copy(self, count: int) -> int:
        """How many of the first `count` free blocks can be used before one that has to be written back."""
        if not count or not self._write_back:
            return count
        kept = self._index.content_of(self._peek_free(count)).tolist()
        only_here = (at for at, content in enumerate(kept) if content != -1 and not self.lower.knows(content))
        return next(only_here, len(kept))

    def _next_free(self, count: int) -> Contents:
        if not self._sees_losses:
            return super()._next_free(count)
        victims = self._peek_free(count)
        kept = self._index.content_of(victims)
        slots = super()._next_free(count)
        lost = kept != -1
        lost[lost] = self._index.unknown(kept[lost])  # else another block holds the same
        self._lose(dict(zip(kept[lost].tolist(), victims[lost].tolist(), strict=True)))
        return slots

    def _lose(self, gone: Mapping[int, int]) -> None:
        """Contents are about to be overwritten in their blocks; the step waits for the copies of those only there."""
        if not self._write_back:
            return
        contents = [content for content in gone if not self.lower.knows(content)]
        slots = [gone[content] for content in contents]
        count = self._reserve(contents, self._position[slots].tolist())
        if count:
            self.account.written_back += count
            copy = Copy(contents[:count], slots[:count])
            self._ask("write_back", "offload", count, copy, blocking=True)

    def _remember(self, contents: Contents, slots: Contents, first: int) -> None:
        self._position[slots] = np.arange(first, first + slots.size)
        super()._remember(contents, slots, first)
