"""Real time as the engine sees it: whole nanoseconds since the start of the run."""

from __future__ import annotations

import time
from typing import Final, Protocol

_SPIN_NS: Final = 300_000  # a sleeping thread may come back so late; what is nearer is waited for awake


class WallClock(Protocol):
    """What the engine asks of time; a double may let it pass as it likes."""

    def now_ns(self) -> int:
        """Nanoseconds since the start of the run."""

    def wait_until(self, when_ns: int) -> None:
        """Return at that time, or at once where it is past."""


class MonotonicClock:
    """The system's monotonic clock; starts when it is made."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def wait_until(self, when_ns: int) -> None:
        while (left := when_ns - self.now_ns()) > 0:
            if left > _SPIN_NS:
                time.sleep((left - _SPIN_NS) * 1e-9)
