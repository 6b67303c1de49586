"""The link over which pages of KV come from host memory: bytes copied beside a step, until the step ends.

A GPU's link is as fast as it is. On a CPU both memories are the same DRAM, and a copy of some pages takes no time that
anybody would notice; there the link has a rate, by which the copies are paced: a page is copied when a link of that
rate would have brought it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
CopyPages = Callable[[Int64], None]

_CHUNK_S: Final = 5e-4  # of copies between two looks at whether the step has ended


class PageStream:
    """Pages on their way, in order. Made by `PageLink.start`."""

    def __init__(self, pages: Int64) -> None:
        self.pages = pages
        self.ending = Event()
        self.moved: Future[int] | None = None


class PageLink:
    """Copies pages of `page_bytes` one after the other, in a thread of its own."""

    def __init__(
        self, page_bytes: int, copy: CopyPages, *, bytes_per_s: float | None, latency_s: float = 0.0
    ) -> None:
        self._page_bytes = page_bytes
        self._copy = copy
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        rate = bytes_per_s or 1e10
        self._chunk = max(1, int(_CHUNK_S * rate / page_bytes))
        self._thread = ThreadPoolExecutor(1, "pages")

    def fetch(self, pages: Int64, num_bytes: int) -> None:
        """Copy pages that a step waits for; `num_bytes` is what must cross the link for that."""
        start = time.perf_counter()
        if pages.size:
            self._copy(pages)
        if self._bytes_per_s is not None and num_bytes:
            due = start + self._latency_s + num_bytes / self._bytes_per_s
            _wait_until(due)

    def start(self, pages: Int64) -> PageStream:
        """Begin to copy pages; nobody waits for them."""
        stream = PageStream(pages)
        stream.moved = self._thread.submit(self._work, stream)
        return stream

    @staticmethod
    def stop(stream: PageStream) -> Int64:
        """End it once the page is there that is being copied; returns the pages that came."""
        assert stream.moved is not None
        stream.ending.set()
        return stream.pages[: stream.moved.result()]

    def close(self) -> None:
        self._thread.shutdown()

    def _work(self, stream: PageStream) -> int:
        start = time.perf_counter() + self._latency_s
        moved = 0
        while moved < stream.pages.size and not stream.ending.is_set():
            chunk = stream.pages[moved : moved + self._chunk]
            if self._bytes_per_s is not None:
                due = start + (moved + chunk.size) * self._page_bytes / self._bytes_per_s
                if stream.ending.wait(max(due - time.perf_counter(), 0.0)):
                    break
            self._copy(chunk)
            moved += chunk.size
        return moved


def _wait_until(when_s: float) -> None:
    while (left := when_s - time.perf_counter()) > 0:
        if left > 3e-4:
            time.sleep(left - 3e-4)
