"""KV of running sequences in host memory, a cache of its pages in HBM, and what must cross the link between.

All KV is in host memory: a page that leaves HBM costs nothing, one that comes back costs its bytes. A page that the
GPU writes is born in HBM, as the most recently used. A step goes layer group by layer group; in each it writes, then
reads first the pages that are there, then those that are not, which take the places of the least recently used. So
without a prefetcher this is an LRU cache, read in that order. Missing pages that find no place (because everything is
kept, or a group reads more than HBM holds) pass through a buffer and do not stay.

A driver, simulated or real, does this in each step:

    blocking = paging.begin_step(sequences)
                                 bytes that must come before the step can run; of late prefetches, what is missing
    queued = paging.plan_prefetches()
                                 bytes to copy while the step runs, one page after the other
    paging.arrived(num_bytes)    so many of them came; copying stops with the step, and what is left of the queue is
                                 planned anew in the next
    paging.end(key)              once a sequence is finished or preempted

`arrived` may be called more than once, and must be before anything else follows. Time is the driver's: nothing here
knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvariantError
from sim.kv.access.heat_map import HeatCounter
from sim.kv.access.reads import AccessModel, Int64, Reads, num_blocks
from sim.kv.paging.account import PagingAccount
from sim.kv.paging.page_cache import PageCache
from sim.kv.paging.page_table import PageTable
from sim.kv.prefetch.decision import Decision, Pages, PagingView, Prefetcher

_NOTHING = np.zeros(0, dtype=np.int64)


class HostPaging:
    """`capacity` pages of `page_bytes` fit in HBM. Sequences are named by keys, which also name them to `access`."""

    def __init__(
        self, access: AccessModel, prefetcher: Prefetcher, *, capacity: int, page_bytes: int
    ) -> None:
        if capacity < 1 or page_bytes < 1:
            raise InvariantError(f"room for {capacity} pages of {page_bytes} bytes")
        self.account = PagingAccount()
        self.heat = HeatCounter(access.groups, access.block_size)
        self.page_bytes = page_bytes
        self._access = access
        self._prefetcher = prefetcher
        self._table = PageTable(access.groups)
        self._batch = self._table.batch([])
        self._cache = PageCache(capacity)
        self._unread = np.zeros(0, dtype=np.bool_)  # in HBM by a prefetch, and not read yet
        self._pushed = np.zeros(0, dtype=np.bool_)  # out of HBM because of a prefetch
        self._queued = np.zeros(0, dtype=np.bool_)  # in the queue
        self._queue = _NOTHING  # pages on their way or waiting for it, in order
        self._come_bytes = 0  # of the first of them
        self._view: PagingView | None = None
        self._numbers = _NOTHING  # of the pages that the step reads

    @property
    def capacity(self) -> int:
        """Pages that HBM holds."""
        return self._cache.capacity

    def tokens(self, pages: int) -> int:
        """Tokens that so many pages hold, each in all layers."""
        return pages * self._access.block_size // self._access.groups

    # For a driver with real pages: which they are, by number.

    @property
    def groups(self) -> int:
        """Groups of layers that are paged together."""
        return self._access.groups

    @property
    def step_reads(self) -> tuple[Pages, Int64]:
        """The pages that the step reads, by group, sequence and block, and their numbers."""
        if self._view is None:
            raise InvariantError("pages are read in a step that began")
        return self._view.reads, self._numbers

    @property
    def queue(self) -> Int64:
        """Numbers of the pages that are to come, in order."""
        return self._queue

    def numbers(self, key: int) -> Int64:
        """Numbers of the sequence's pages, (blocks, groups)."""
        return self._table.batch([key]).columns[:, None] * self._access.groups + np.arange(
            self._access.groups
        )

    def resident(self, pages: Int64) -> NDArray[np.bool_]:
        """Which of the pages are in HBM."""
        return self._cache.resident(pages)

    @property
    def queued_bytes(self) -> int:
        """What is still to come of the queue."""
        return int(self._queue.size) * self.page_bytes - self._come_bytes

    def begin_step(self, sequences: Sequence[tuple[int, int]]) -> int:
        """Read the pages of a step over (key, context tokens); returns the bytes that it waits for.

        The context is what the step attends to, its own token included; blocks that it has for the first time are
        written, not fetched.
        """
        block_size, groups = self._access.block_size, self._access.groups
        born = [self._table.extend(key, num_blocks(context, block_size)) for key, context in sequences]
        self._know(self._table.columns * groups)
        batch = [self._access.reads(key, context) for key, context in sequences]
        place = np.repeat(np.arange(len(batch)), [one.block.size for one in batch])
        reads = _joined(batch)
        order = np.argsort(reads.group, kind="stable")
        reads = Reads(reads.group[order], reads.block[order], reads.weight[order])
        pages = Pages(place[order], reads.group, reads.block)
        self._batch = self._table.batch([key for key, _ in sequences])
        blocks = self._batch.blocks
        self._view = PagingView(tuple(sequences), blocks, pages, reads.weight)
        self.heat.add(reads, blocks[pages.sequence] - 1)
        written = np.concatenate([*born, _NOTHING]).reshape(-1, groups)
        bounds = np.searchsorted(reads.group, np.arange(groups + 1)).tolist()
        before = self.account.blocking_bytes
        numbers = self._numbers = self._batch.numbers(pages)
        for group, (begin, end) in enumerate(pairwise(bounds)):
            self._write(written[:, group])
            self._read(numbers[begin:end])
        self._queue = self._queue[self._queued[self._queue]]
        self.account.steps += 1
        return self.account.blocking_bytes - before

    def plan_prefetches(self) -> int:
        """Ask the prefetcher what to fetch while the step runs; returns the bytes that are to come."""
        if self._view is None:
            raise InvariantError("prefetches are planned for a step that began")
        decision = self._prefetcher.plan(self._view)
        head = self._queue[: bool(self._come_bytes)]
        wanted = self._wanted(decision, head)
        before = self._queue[head.size :]
        self._queued[before] = False
        self._queued[wanted] = True
        self.account.withdrawn_bytes += self.page_bytes * int(np.count_nonzero(~self._queued[before]))
        self._queue = np.concatenate([head, wanted])
        return self.queued_bytes

    def arrived(self, num_bytes: int) -> None:
        """So many more bytes of the queue have come; pages that are complete now are in HBM."""
        if not 0 <= num_bytes <= self.queued_bytes:
            raise InvariantError(f"{num_bytes} bytes arrived of {self.queued_bytes} queued")
        complete, come_bytes = divmod(self._come_bytes + num_bytes, self.page_bytes)
        account = self.account
        account.issued_bytes += num_bytes
        account.in_flight_bytes += come_bytes - self._come_bytes
        self._come_bytes = come_bytes
        landed, self._queue = self._queue[:complete], self._queue[complete:]
        if not complete:
            return
        self._queued[landed] = False
        self._pushed[landed] = False
        self._make_room(complete)
        self._cache.insert(landed)
        self._unread[landed] = True
        account.unread_bytes += complete * self.page_bytes

    def end(self, key: int) -> None:
        """Forget a sequence; nothing of it will be read again."""
        if key not in self._table:
            return
        pages = self._table.remove(key)
        account = self.account
        resident = pages[self._cache.resident(pages)]
        self._waste(resident)
        self._cache.remove(resident)
        self._cache.forget(pages)
        self._pushed[pages] = False
        if self._come_bytes and self._queue[0] in pages:
            account.wasted_bytes += self._come_bytes
            account.in_flight_bytes -= self._come_bytes
            self._come_bytes = 0
            self._queued[self._queue[0]] = False
        account.withdrawn_bytes += self.page_bytes * int(np.count_nonzero(self._queued[pages]))
        self._queued[pages] = False
        self._queue = self._queue[self._queued[self._queue]]

    # A step.

    def _write(self, pages: Int64) -> None:
        """Let new pages of one layer group be born; where HBM cannot hold all of them, the last stay."""
        pages = pages[-self._cache.capacity :]
        cache = self._cache
        short = cache.size + pages.size - cache.capacity
        if short > 0:
            out = cache.evict(short)
            self._waste(out)
            self._waste(cache.evict(short - out.size, kept=True))
        cache.insert(pages)

    def _read(self, pages: Int64) -> None:
        """Read pages of one layer group, no page twice."""
        account, cache, page_bytes = self.account, self._cache, self.page_bytes
        resident = cache.resident(pages)
        hits, missing = pages[resident], pages[~resident]
        account.reads += pages.size
        account.hits += hits.size
        fresh = hits[self._unread[hits]]
        self._unread[fresh] = False
        account.prefetch_hits += fresh.size
        account.useful_bytes += fresh.size * page_bytes
        account.unread_bytes -= fresh.size * page_bytes
        cache.touch(hits)
        if not missing.size:
            return
        queued = self._queued[missing]
        self._claim(missing[queued])
        demanded = missing[~queued]
        account.demanded += demanded.size
        account.demand_bytes += demanded.size * page_bytes
        account.evicting_bytes += int(np.count_nonzero(self._pushed[demanded])) * page_bytes
        self._pushed[missing] = False
        free = cache.capacity - cache.size
        out = cache.evict(missing.size - free) if missing.size > free else _NOTHING
        self._waste(out)
        cache.insert(missing[max(missing.size - free - out.size, 0) :])

    def _claim(self, late: Int64) -> None:
        """The step waits for pages of the queue, which come before all others now."""
        if not late.size:
            return
        account = self.account
        come = 0
        if self._come_bytes and self._queue[0] in late:
            come, self._come_bytes = self._come_bytes, 0
            account.in_flight_bytes -= come
        self._queued[late] = False
        rest = late.size * self.page_bytes - come
        account.late += late.size
        account.late_bytes += late.size * self.page_bytes
        account.waited_bytes += rest
        account.issued_bytes += rest

    # Prefetching.

    def _wanted(self, decision: Decision, head: Int64) -> Int64:
        """Pages to fetch that can be, as many as there is room for; and see to the keeping."""
        wanted, cache = self._existing(decision.fetch), self._cache
        wanted = wanted[~cache.resident(wanted)]
        _, first = np.unique(wanted, return_index=True)
        wanted = wanted[np.sort(first)]
        wanted = wanted[~np.isin(wanted, head)]
        cache.keep(np.unique(self._existing(decision.keep)))
        return wanted[: max(cache.capacity - cache.num_kept - head.size, 0)]

    def _make_room(self, count: int) -> None:
        """Displace what is not kept, and what is kept only for a page that was on its way before."""
        cache = self._cache
        short = cache.size + count - cache.capacity
        if short <= 0:
            return
        out = cache.evict(short)
        if out.size < short:
            out = np.concatenate([out, cache.evict(short - out.size, kept=True)])
        self._waste(out)
        self._pushed[out] = True

    def _existing(self, pages: Pages) -> Int64:
        """Numbers of the pages that there are."""
        there = (pages.block >= 0) & (pages.block < self._batch.blocks[pages.sequence])
        return self._batch.numbers(pages[there])

    def _waste(self, pages: Int64) -> None:
        """Pages leave HBM: what a prefetch brought and nobody read was for nothing."""
        unread = pages[self._unread[pages]]
        self._unread[unread] = False
        self.account.wasted_bytes += unread.size * self.page_bytes
        self.account.unread_bytes -= unread.size * self.page_bytes

    def _know(self, pages: int) -> None:
        self._cache.reserve(pages)
        if pages > self._unread.size:
            more = np.zeros(max(pages - self._unread.size, self._unread.size), dtype=np.bool_)
            self._unread = np.concatenate([self._unread, more])
            self._pushed = np.concatenate([self._pushed, more])
            self._queued = np.concatenate([self._queued, more])


def _joined(batch: Sequence[Reads]) -> Reads:
    if not batch:
        return Reads.nothing()
    return Reads(
        np.concatenate([reads.group for reads in batch]),
        np.concatenate([reads.block for reads in batch]),
        np.concatenate([reads.weight for reads in batch]),
    )
