"""A prefix cache over three tiers: blocks of HBM that are also in host memory or on disk, or there alone.

As with vLLM's offloading connector and LMCache: full blocks are copied to host memory when they have been computed
(write-through) or before they are overwritten (write-back). A prompt looks first in HBM, then in host memory, then on
disk; what is found below is brought to blocks of its own before the prompt runs, where that pays (`reload.py`).
Others that want the same blocks meanwhile share them, and wait as well.

What a block holds is not overwritten while it is being copied. A sequence that ends keeps its blocks until its copies
have landed. One that is preempted gives them away at once: the next step then waits for the copies, and so does the
step that overwrites a block which is written back. A load starts when no step waits for a copy: it may go into such a
block.

The blocks of an answer are findable, and copied, when it ends. Contents that no other request can have are kept too:
an engine cannot know them, and a preempted sequence finds its own again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from sim.errors import InvariantError
from sim.kv.allocators.cached_paged import CachedHolding, CachedPagedAllocator
from sim.kv.allocators.decision import NO_BLOCKS, Claim, Contents
from sim.kv.allocators.evicting_paged import EvictingPagedAllocator
from sim.kv.allocators.paged import PagedHolding
from sim.kv.eviction.decision import Eviction
from sim.kv.tiers.account import TierAccount
from sim.kv.tiers.lower import LowerTiers
from sim.kv.tiers.movement import Copy, Demotion, Load, Part
from sim.kv.tiers.prefetching import SessionPrefetch
from sim.kv.tiers.reload import Queued
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


class TieredPagedAllocator(CachedPagedAllocator):
    """`CachedPagedAllocator` above `lower` tiers; `account` says what was found and moved."""

    def __init__(self, num_blocks: int, block_size: int, tiers: TierSetup, *policy: Eviction) -> None:
        super().__init__(num_blocks, block_size, *policy)
        self.lower: LowerTiers = tiers.stores()
        self.account = TierAccount()
        self._reload = tiers.reload
        self._swapping = tiers.swapping
        self._write_back = tiers.write == "back"
        self._block_bytes = tiers.reload.block_bytes
        self._position = np.zeros(num_blocks, dtype=np.int64)  # of what a block holds, in its sequence
        self._arriving: dict[int, Load] = {}  # by block
        self._fresh: dict[TieredHolding, None] = {}  # with blocks that were not looked at for write-through
        self._ended: dict[TieredHolding, None] = {}  # that keep their blocks for the copies
        self._swapped: set[int] = set()  # requests whose KV a preemption left below
        self._on_their_way: dict[Transfer, None] = {}
        self._held_back: list[Load] = []  # until no step waits for a copy
        self._pins: dict[Load, TieredHolding] = {}  # of loads for no sequence
        self._prefetch: SessionPrefetch | None = None
        self._found: tuple[Claim | None, list[bool]] = None, []  # for whom, and what lower tiers hold of it

    def prefetch_with(self, prefetch: SessionPrefetch) -> None:
        """From now on bring back what sessions are expected to ask for."""
        self._prefetch = prefetch

    # One sequence.

    def find_prefix(self, claim: Claim) -> int:
        """Tokens in HBM; how many more come from below is decided where the claim could be held now."""
        super().find_prefix(claim)
        assert claim.contents is not None
        found = claim.prefix.size
        loaded = 0
        below: list[bool] = []
        if self.can_hold(claim):
            wanted = claim.contents[found : (claim.tokens - 1) // self.block_size]
            below = self.lower.leading_run(wanted.tolist(), self.now_ns)
            if below:
                loaded = self._reload.blocks(claim.tokens, found * self.block_size, below, self._queued())
        self._found = claim, below
        resident = self._resident(claim.prefix)
        claim.loading_tokens = (found - resident + loaded) * self.block_size
        return resident * self.block_size

    def open(self, claim: Claim) -> TieredHolding:
        assert claim.contents is not None
        asked, below = self._found
        if asked is not claim:
            raise InvariantError(f"request {claim.index} is opened without a look at what is found for it")
        prefix = claim.prefix
        resident = self._resident(prefix)
        coming = prefix[resident:].tolist()
        loaded = claim.loading_tokens // self.block_size - len(coming)
        self._count(claim.tokens, resident, len(coming), below, loaded)
        if self._prefetch is not None:
            self._tell_prefetch(self._prefetch, claim, resident)
        holding = TieredHolding(claim.contents, claim.index)
        self.lower.touch(claim.contents[: prefix.size].tolist(), self.now_ns)
        self._share(holding, prefix)
        for load in dict.fromkeys(self._arriving[slot] for slot in coming if slot in self._arriving):
            self._wait(holding, load)
        if loaded:
            owner = "swap_in" if claim.index in self._swapped else "reload"
            self._wait(holding, self._bring(holding, below[:loaded], owner))
        self._swapped.discard(claim.index)
        return holding

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
        if self._prefetch is not None:
            self._prefetch.ended(holding.index, holding.contents[: holding.stored], self.now_ns)
        if holding.copies:
            self._ended[holding] = None
        else:
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
        super().release(holding)

    # All that run.

    def begin_step(self) -> None:
        for holding in [holding for holding in self._fresh if not holding.loads]:
            del self._fresh[holding]
            self._copy_new(holding)
        if self._prefetch is not None:
            for contents in self._prefetch.due(self.now_ns):
                self._prefetch_session(self._prefetch, contents)
            self.wake_ns = self._prefetch.next_ns

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

    def is_loading(self, holding: PagedHolding) -> bool:
        assert isinstance(holding, TieredHolding)
        return bool(holding.loads)

    def landed(self, transfer: Transfer) -> None:
        del self._on_their_way[transfer]
        work = transfer.payload
        if isinstance(work, Copy):
            self._copied(transfer, work)
        elif isinstance(work, Demotion):
            self.lower.demoted(work, self.now_ns)
        else:
            self._loaded(work)
        if self._held_back and not self._step_waits():
            ready, self._held_back = self._held_back, []
            for load in ready:
                self._send(load)

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
        account.prefetch = None if self._prefetch is None else self._prefetch.account
        return account

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        own = [*holdings, *self._ended, *self._pins.values()]
        super().check_integrity(own)
        self.lower.check_integrity()
        held = set(np.concatenate([NO_BLOCKS, *(cast("TieredHolding", h).slots for h in own)]).tolist())
        if not self._arriving.keys() <= held:
            raise InvariantError("a block that is being loaded is nobody's")
        moving = {id(transfer.payload) for transfer in self._on_their_way}
        for load in self._arriving.values():
            for part in load.parts:
                if (id(part) in moving) == (load in self._held_back):
                    raise InvariantError(f"{load} is neither on its way nor held back, or both")

    @property
    def _stores(self) -> list[TierStore]:
        return [self.lower.host] if self.lower.disk is None else [self.lower.host, self.lower.disk]

    def _count(self, tokens: int, resident: int, coming: int, below: Sequence[bool], loaded: int) -> None:
        account, size = self.account, self.block_size
        disk = sum(below[:loaded])
        account.queried_tokens += tokens
        account.hbm_tokens += resident * size
        account.arriving_tokens += coming * size
        account.host_tokens += (loaded - disk) * size
        account.disk_tokens += disk * size
        account.recomputed_tokens += (len(below) - loaded) * size

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
                super().release(holding)

    def _free_without_copy(self, count: int) -> int:
        """How many of the first `count` free blocks can be used before one that has to be written back."""
        if not count or not self._write_back:
            return count
        kept = self._index.content_of(self._peek_free(count)).tolist()
        only_here = (at for at, content in enumerate(kept) if content != -1 and not self.lower.knows(content))
        return next(only_here, len(kept))

    def _next_free(self, count: int) -> Contents:
        if not self._write_back and self._prefetch is None:
            return super()._next_free(count)
        victims = self._peek_free(count)
        kept = self._index.content_of(victims)
        slots = super()._next_free(count)
        lost = kept != -1
        lost[lost] = self._index.unknown(kept[lost])  # else another block holds the same
        gone = dict(zip(kept[lost].tolist(), victims[lost].tolist(), strict=True))
        if self._prefetch is not None:
            self._prefetch.gone(gone)
        if self._write_back:
            self._save({content: slot for content, slot in gone.items() if not self.lower.knows(content)})
        return slots

    def _save(self, gone: Mapping[int, int]) -> None:
        """Copy contents to host memory whose blocks are about to be overwritten; the step waits."""
        contents, slots = list(gone), list(gone.values())
        count = self._reserve(contents, self._position[slots].tolist())
        if count:
            self.account.written_back += count
            copy = Copy(contents[:count], slots[:count])
            self._ask("write_back", "offload", count, copy, blocking=True)

    def _remember(self, contents: Contents, slots: Contents, first: int) -> None:
        self._position[slots] = np.arange(first, first + slots.size)
        super()._remember(contents, slots, first)
        if self._prefetch is not None:
            self._prefetch.back(contents.tolist())

    # Loads.

    def _resident(self, prefix: Contents) -> int:
        """Leading blocks of a prefix in HBM that are not still on their way there."""
        if self._arriving:
            for at, slot in enumerate(prefix.tolist()):
                if slot in self._arriving:
                    return at
        return int(prefix.size)

    def _bring(self, holding: TieredHolding, on_disk: Sequence[bool], owner: str) -> Load:
        """Let a sequence hold blocks behind those that it has, and load what belongs there."""
        first, count = holding.blocks, len(on_disk)
        contents = holding.contents[first : first + count]
        load = Load(NO_BLOCKS, owner)
        for store, below in zip(self._stores, (False, True), strict=False):
            places = [at for at, flag in enumerate(on_disk) if flag is below]
            if places:
                wanted = contents[places].tolist()
                store.read(wanted, self.now_ns)  # before room is made, which might cost it
                load.parts.append(Part(load, store, wanted, places))
        load.slots = self._take(count)
        for part in load.parts:
            part.slots = load.slots[part.slots].tolist()
        self._remember(contents, load.slots, first)
        holding.slots = np.concatenate([holding.slots, load.slots])
        holding.blocks += count
        holding.stored += count
        holding.tokens += count * self.block_size
        self._tokens += count * self.block_size
        self._arriving.update(dict.fromkeys(load.slots.tolist(), load))
        self._count_load(owner, count, sum(on_disk))
        if self._step_waits():
            self._held_back.append(load)
        else:
            self._send(load)
        return load

    @staticmethod
    def _wait(holding: TieredHolding, load: Load) -> None:
        holding.loads.append(load)
        load.waiting.append(holding)

    def _count_load(self, owner: str, count: int, from_disk: int) -> None:
        account = self.account
        account.from_disk += from_disk
        if owner == "swap_in":
            account.swapped_in += count
        elif owner == "prefetch":
            account.prefetched += count
        else:
            account.reloaded += count

    def _send(self, load: Load) -> None:
        for part in load.parts:
            route: Route = "load" if part.store is self.lower.host else "disk_load"
            self._ask(load.owner, route, len(part.contents), part)

    def _loaded(self, part: Part) -> None:
        part.store.done(part.contents, self.now_ns)
        load = part.load
        load.parts.remove(part)
        if load.parts:
            return
        for slot in load.slots.tolist():
            del self._arriving[slot]
        for holding in load.waiting:
            cast("TieredHolding", holding).loads.remove(load)
        pin = self._pins.pop(load, None)
        if pin is not None:
            super().release(pin)

    def _tell_prefetch(self, prefetch: SessionPrefetch, claim: Claim, resident: int) -> None:
        assert claim.contents is not None
        wanted = claim.contents[: (claim.tokens - 1) // self.block_size].tolist()
        found = claim.prefix.size
        prefetch.opened(claim.index, wanted[:resident], wanted[resident:found], wanted[found:])
        self.wake_ns = prefetch.next_ns

    def _prefetch_session(self, prefetch: SessionPrefetch, contents: Contents) -> None:
        """Bring back what follows what HBM has of a session; as for a sequence, but none waits for it."""
        claim = Claim(-1, contents.size * self.block_size + 1, 0, contents=contents)
        CachedPagedAllocator.find_prefix(self, claim)
        found = claim.prefix.size
        pin = TieredHolding(contents, -1)
        self._share(pin, claim.prefix)  # or it might have to make room for what follows it
        below = self.lower.leading_run(contents[found:].tolist(), self.now_ns)
        count = self._free_without_copy(min(prefetch.budget(self._free), len(below)))
        if count:
            prefetch.issuing(contents[found : found + count].tolist())
            load = self._bring(pin, below[:count], "prefetch")
            prefetch.issued()
            self._pins[load] = pin
        else:
            super().release(pin)

    # Links.

    def _ask(
        self, owner: str, route: Route, blocks: int, payload: object, *, blocking: bool = False
    ) -> Transfer:
        transfer = Transfer(owner, route, blocks * self._block_bytes, blocking, payload)
        self.transfers.append(transfer)
        self._on_their_way[transfer] = None
        return transfer

    def _step_waits(self) -> bool:
        return any(transfer.blocking for transfer in self._on_their_way)

    def _queued(self) -> Queued:
        """Bytes that are on their way to HBM."""
        total = disk = 0
        for transfer in self._on_their_way:
            if transfer.route in ("load", "disk_load"):
                total += transfer.num_bytes
                disk += transfer.num_bytes * (transfer.route == "disk_load")
        return Queued(total, disk)


class TieredEvictingPagedAllocator(TieredPagedAllocator, EvictingPagedAllocator):
    """The same where blocks of HBM go in the order of an eviction policy."""

    def _prefetch_session(self, prefetch: SessionPrefetch, contents: Contents) -> None:
        shared = np.flatnonzero(contents < 0)  # from the first on that only its own sequence could find
        super()._prefetch_session(prefetch, contents[: shared[0]] if shared.size else contents)
