"""A prefix cache over three tiers: what HBM has no longer is brought back from host memory or disk.

A prompt looks first in HBM, then in host memory, then on disk; what is found below is brought to blocks of its own
before the prompt runs, where that pays (`sim/kv/tiers/reload.py`). Others that want the same blocks meanwhile share
them, and wait as well. A load starts when no step waits for a copy: it may go into a block that is being copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from sim.errors import InvariantError
from sim.kv.allocators.cached_paged import CachedPagedAllocator
from sim.kv.allocators.decision import NO_BLOCKS, Claim, Contents
from sim.kv.allocators.evicting_paged import EvictingPagedAllocator
from sim.kv.allocators.offloading_paged import OffloadingPagedAllocator, TieredHolding
from sim.kv.allocators.paged import PagedHolding
from sim.kv.eviction.decision import Eviction
from sim.kv.tiers.account import TierAccount
from sim.kv.tiers.movement import Load, Part
from sim.kv.tiers.prefetching import SessionPrefetch
from sim.kv.tiers.reload import Queued
from sim.kv.tiers.setup import TierSetup
from sim.kv.transfer import Route, Transfer


class TieredPagedAllocator(OffloadingPagedAllocator):
    """`OffloadingPagedAllocator` that reads what it wrote; `account` also says what was found where."""

    def __init__(self, num_blocks: int, block_size: int, tiers: TierSetup, *policy: Eviction) -> None:
        super().__init__(num_blocks, block_size, tiers, *policy)
        self._reload = tiers.reload
        self._arriving: dict[int, Load] = {}  # by block
        self._held_back: list[Load] = []  # until no step waits for a copy
        self._pins: dict[Load, TieredHolding] = {}  # of loads for no sequence
        self._prefetch: SessionPrefetch | None = None
        self._found: tuple[Claim | None, list[bool]] = None, []  # for whom, and what lower tiers hold of it

    def prefetch_with(self, prefetch: SessionPrefetch) -> None:
        """From now on bring back what sessions are expected to ask for."""
        self._prefetch = prefetch
        self._sees_losses = True

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

    def release(self, holding: PagedHolding) -> None:
        assert isinstance(holding, TieredHolding)
        self._settle(holding)
        if self._prefetch is not None:
            self._prefetch.ended(holding.index, holding.contents[: holding.stored], self.now_ns)
        super().release(holding)

    def is_loading(self, holding: PagedHolding) -> bool:
        assert isinstance(holding, TieredHolding)
        return bool(holding.loads)

    # All that run.

    def begin_step(self) -> None:
        super().begin_step()
        if self._prefetch is not None:
            for contents in self._prefetch.due(self.now_ns):
                self._prefetch_session(self._prefetch, contents)
            self.wake_ns = self._prefetch.next_ns

    def landed(self, transfer: Transfer) -> None:
        super().landed(transfer)
        if isinstance(transfer.payload, Part):
            self._loaded(transfer.payload)
        if self._held_back and not self._step_waits():
            ready, self._held_back = self._held_back, []
            for load in ready:
                self._send(load)

    # Books.

    def tier_account(self, end_ns: int) -> TierAccount:
        account = super().tier_account(end_ns)
        account.prefetch = None if self._prefetch is None else self._prefetch.account
        return account

    def check_integrity(self, holdings: Iterable[PagedHolding]) -> None:
        own = [*holdings, *self._pins.values()]
        super().check_integrity(own)
        held = set(np.concatenate([NO_BLOCKS, *(cast("TieredHolding", h).slots for h in own)]).tolist())
        if not self._arriving.keys() <= held:
            raise InvariantError("a block that is being loaded is nobody's")
        moving = {id(transfer.payload) for transfer in self._on_their_way}
        for load in self._arriving.values():
            for part in load.parts:
                if (id(part) in moving) == (load in self._held_back):
                    raise InvariantError(f"{load} is neither on its way nor held back, or both")

    def _count(self, tokens: int, resident: int, coming: int, below: Sequence[bool], loaded: int) -> None:
        account, size = self.account, self.block_size
        disk = sum(below[:loaded])
        account.queried_tokens += tokens
        account.hbm_tokens += resident * size
        account.arriving_tokens += coming * size
        account.host_tokens += (loaded - disk) * size
        account.disk_tokens += disk * size
        account.recomputed_tokens += (len(below) - loaded) * size

    def _lose(self, gone: Mapping[int, int]) -> None:
        super()._lose(gone)
        if self._prefetch is not None:
            self._prefetch.gone(gone)

    def _remember(self, contents: Contents, slots: Contents, first: int) -> None:
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
            self._give_back(pin)

    def _queued(self) -> Queued:
        """Bytes that are on their way to HBM."""
        total = disk = 0
        for transfer in self._on_their_way:
            if transfer.route in ("load", "disk_load"):
                total += transfer.num_bytes
                disk += transfer.num_bytes * (transfer.route == "disk_load")
        return Queued(total, disk)

    # Sessions.

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
            self._give_back(pin)


class TieredEvictingPagedAllocator(TieredPagedAllocator, EvictingPagedAllocator):
    """The same where blocks of HBM go in the order of an eviction policy."""

    def _prefetch_session(self, prefetch: SessionPrefetch, contents: Contents) -> None:
        shared = np.flatnonzero(contents < 0)  # from the first on that only its own sequence could find
        super()._prefetch_session(prefetch, contents[: shared[0]] if shared.size else contents)
