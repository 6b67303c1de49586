"""The pages that are in HBM, in the order of their last use.

A log of uses with a head: a page's stamp is the place of its last use in the log, and an entry whose page has another
stamp is stale. So a use is an append, and the least recently used page is the first entry that is not stale; all of
it in whole arrays. Pages that are kept are passed over by whoever looks for a place.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.errors import InvariantError
from sim.kv.access.reads import Int64

_ABSENT: Final = -1
_SCAN: Final = 1 << 12  # entries looked at in a piece


class PageCache:
    """Room for `capacity` pages; pages are numbers from 0 up to a limit that may grow."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._stamp = np.full(0, _ABSENT, dtype=np.int64)  # of every page
        self._kept = np.zeros(0, dtype=np.bool_)
        self._keeping: Int64 = np.zeros(0, dtype=np.int64)
        self._log = np.empty(_SCAN, dtype=np.int64)
        self._head = 0  # entries before it are stale
        self._end = 0

    def resident(self, pages: Int64) -> NDArray[np.bool_]:
        return self._stamp[pages] != _ABSENT

    def reserve(self, pages: int) -> None:
        """Know pages up to this number."""
        if pages > self._stamp.size:
            size = max(pages, 2 * self._stamp.size)
            stamp = np.full(size, _ABSENT, dtype=np.int64)
            stamp[: self._stamp.size] = self._stamp
            kept = np.zeros(size, dtype=np.bool_)
            kept[: self._kept.size] = self._kept
            self._stamp, self._kept = stamp, kept

    # Uses.

    def touch(self, pages: Int64) -> None:
        """Use resident pages, in this order."""
        if pages.size:
            self._append(pages)

    def insert(self, pages: Int64) -> None:
        """Bring in pages that are absent, in this order, for which there is room."""
        if not pages.size:
            return
        if self.size + pages.size > self.capacity:
            raise InvariantError(f"{pages.size} pages do not fit beside {self.size} of {self.capacity}")
        self._append(pages)
        self.size += pages.size

    def remove(self, pages: Int64) -> None:
        """Drop resident pages."""
        self._stamp[pages] = _ABSENT
        self.size -= pages.size

    # Protection.

    def keep(self, pages: Int64) -> None:
        """Keep these pages, resident or not, and no others."""
        self._kept[self._keeping] = False
        self._keeping = pages
        self._kept[pages] = True

    def forget(self, pages: Int64) -> None:
        """These numbers will stand for other pages: keep none of them."""
        self._kept[pages] = False

    @property
    def num_kept(self) -> int:
        """Kept pages that are resident."""
        keeping = self._keeping
        return int(np.count_nonzero(self._kept[keeping] & (self._stamp[keeping] != _ABSENT)))

    def evict(self, count: int, *, kept: bool = False) -> Int64:
        """Take out up to `count` pages, least recently used first, and return them; those kept only if told so."""
        count = min(count, self.size)
        found: list[Int64] = []
        at = self._head
        passed_over = False
        while count > 0 and at < self._end:
            stop = min(at + _SCAN, self._end)
            pages = self._valid(at, stop)
            if not kept:
                free = pages[~self._kept[pages]]
                passed_over |= free.size < pages.size
                pages = free
            pages = pages[:count]
            found.append(pages)
            self.remove(pages)
            count -= pages.size
            if not passed_over and count > 0:
                self._head = stop
            at = stop
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    # The log.

    def _valid(self, begin: int, end: int) -> Int64:
        pages = self._log[begin:end]
        return pages[self._stamp[pages] == np.arange(begin, end)]

    def _append(self, pages: Int64) -> None:
        if self._end + pages.size > self._log.size:
            self._compact(pages.size)
        end = self._end + pages.size
        self._log[self._end : end] = pages
        self._stamp[pages] = np.arange(self._end, end)
        self._end = end

    def _compact(self, more: int) -> None:
        """Drop stale entries; leave at least half of the log empty."""
        live = self._valid(self._head, self._end)
        log = np.empty(max(self._log.size, 2 * (live.size + more)), dtype=np.int64)
        log[: live.size] = live
        self._stamp[live] = np.arange(live.size)
        self._log, self._head, self._end = log, 0, live.size
