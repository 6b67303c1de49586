"""KV brought back for turns that are expected: whose turn it is, and what became of every block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sim.kv.allocators.decision import Contents
from sim.kv.prefetch.session import Expectations
from sim.kv.tiers.account import PrefetchAccount


class SessionPrefetch:
    """What an allocator with tiers tells and asks. `session_of` and `arrival_ns` are of a request; -1: no session."""

    def __init__(
        self, expectations: Expectations, session_of: Callable[[int], int], arrival_ns: Callable[[int], int]
    ) -> None:
        self.account = PrefetchAccount()
        self._expectations = expectations
        self._session_of = session_of
        self._arrival_ns = arrival_ns
        self._contents: dict[int, Contents] = {}  # of sessions whose next turn is expected
        self._unread: set[int] = set()
        self._pushed_out: set[int] = set()
        self._pushing = False

    @property
    def next_ns(self) -> int | None:
        return self._expectations.next_ns

    def budget(self, free_blocks: int) -> int:
        """Most blocks to take for one session."""
        return int(self._expectations.share * free_blocks)

    def ended(self, index: int, contents: Contents, now_ns: int) -> None:
        """A request has ended with these blocks."""
        session = self._session_of(index)
        if session >= 0 and self._expectations.ended(session, now_ns):
            self._contents[session] = contents

    def due(self, now_ns: int) -> list[Contents]:
        """The blocks of sessions that are to be looked after now."""
        return [self._contents.pop(session) for session in self._expectations.due(now_ns)]

    def opened(self, index: int, found: Sequence[int], coming: Sequence[int], missing: Iterable[int]) -> None:
        """A request was admitted: of its blocks these are in HBM, on their way there, and neither."""
        session = self._session_of(index)
        if session >= 0:
            self._expectations.came(session, self._arrival_ns(index))
            self._contents.pop(session, None)
        self.account.useful += self._read(found)
        self.account.late += self._read(coming)
        for content in missing:
            if content not in self._pushed_out:
                break
            self._pushed_out.discard(content)
            self.account.evicting += 1

    def _read(self, contents: Sequence[int]) -> int:
        unread = self._unread.intersection(contents) if self._unread else ()
        self._unread.difference_update(unread)
        return len(unread)

    def issuing(self, contents: Sequence[int]) -> None:
        """These are about to be brought: what falls out of HBM until `issued` falls out for them."""
        self._pushing = True
        self.account.issued += len(set(contents) - self._unread)
        self._unread.update(contents)

    def issued(self) -> None:
        """They have their blocks."""
        self._pushing = False

    def gone(self, contents: Iterable[int]) -> None:
        """These are in HBM no more."""
        for content in contents:
            if content in self._unread:
                self._unread.discard(content)
                self.account.wasted += 1
            elif self._pushing:
                self._pushed_out.add(content)

    def back(self, contents: Iterable[int]) -> None:
        """These are in HBM, whoever put them there."""
        if self._pushed_out:
            self._pushed_out.difference_update(contents)
