"""Session prefetching: after a turn the next one is expected, and its KV is brought back to HBM shortly before.

A turn is expected a gap after the end of the one before: a gap that is given, or the mean of those seen so far. An
engine does not know which turn of a session is the last.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_NS = 1_000_000_000


class Session(BaseModel):
    """Bring the KV of a session back before its next turn, from the tiers of `kv_tiers`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["session"] = "session"
    expected_gap_s: Annotated[float, Field(strict=True, gt=0, le=1e7)] | None = None
    """From the end of a turn to the next; by default the mean of the gaps seen so far."""
    lead_s: Annotated[float, Field(strict=True, ge=0, le=1e7)] = 1.0
    """How long before the expected turn the blocks are sent for."""
    share: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.25
    """Most of the free blocks of HBM that one session may take."""

    def expectations(self) -> Expectations:
        """Make those of one engine."""
        gap_ns = None if self.expected_gap_s is None else round(self.expected_gap_s * _NS)
        return Expectations(gap_ns, round(self.lead_s * _NS), self.share)


class Expectations:
    """When which session is to be looked after. Sessions are integers, times nanoseconds."""

    def __init__(self, gap_ns: int | None, lead_ns: int, share: float) -> None:
        self.share = share
        self._gap_ns = gap_ns
        self._lead_ns = lead_ns
        self._gaps_ns = 0  # seen, in all
        self._seen = 0
        self._ended: dict[int, int] = {}  # when the latest turn of a session ended, where no other has come
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    @property
    def gap_ns(self) -> int | None:
        """From the end of a turn to the next, as far as is known."""
        if self._gap_ns is not None or not self._seen:
            return self._gap_ns
        return self._gaps_ns // self._seen

    @property
    def next_ns(self) -> int | None:
        """When the next session is due; None: none is expected."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def ended(self, session: int, now_ns: int) -> bool:
        """A turn has ended; whether the next one is expected."""
        self._ended[session] = now_ns
        gap_ns = self.gap_ns
        if gap_ns is None:
            return False
        self._due[session] = due_ns = now_ns + max(gap_ns - self._lead_ns, 0)
        heappush(self._heap, (due_ns, session))
        return True

    def came(self, session: int, arrival_ns: int) -> None:
        """A turn has begun, which arrived then: nothing is to be done for it any more."""
        self._due.pop(session, None)
        ended_ns = self._ended.pop(session, None)
        if ended_ns is not None and arrival_ns >= ended_ns:
            self._gaps_ns += arrival_ns - ended_ns
            self._seen += 1

    def due(self, now_ns: int) -> list[int]:
        """Sessions to be looked after now, each once."""
        sessions = []
        while (next_ns := self.next_ns) is not None and next_ns <= now_ns:
            _, session = heappop(self._heap)
            del self._due[session]
            sessions.append(session)
        return sessions
