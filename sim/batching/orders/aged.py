"""Ageing: whatever a batcher prefers, no request is overtaken more than so many times.

Who arrived first has been overtaken at least as often as any other that waits: whoever was chosen before a later one
was chosen before it as well. So it is enough to look at the oldest, and once it has been overtaken `max_overtaken`
times, it is next. Nobody behind the first `lookahead` requests is looked at, so that a choice costs no more in a
long queue.
"""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from sim.batching.decision import ArrivalsView


class Reordering(BaseModel):
    """The options of every batcher that does not take requests in the order of their arrival."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    lookahead: int = Field(64, strict=True, ge=1, le=65_536)
    """How many of the oldest requests are looked at; 1 is first come first served."""
    max_overtaken: int = Field(16, strict=True, ge=0, le=1_000_000_000)
    """How often a request may be overtaken; then it goes first. 0 is first come first served."""


class Preference(Protocol):
    """What a batcher would take next if nobody aged."""

    def arrived(self, tokens: int) -> None:
        """As `QueueOrder.arrived`."""

    def taken(self, tokens: int) -> None:
        """As `QueueOrder.taken`."""

    def best(self, arrivals: ArrivalsView, count: int) -> int:
        """Place of the one preferred among the first `count`."""


class AgedOrder:
    """A `QueueOrder` that follows a preference as long as nobody is overtaken too often."""

    def __init__(self, preference: Preference, lookahead: int, max_overtaken: int) -> None:
        self._preference = preference
        self._lookahead = lookahead
        self._max_overtaken = max_overtaken
        self.arrived = preference.arrived
        self.taken = preference.taken

    def choose(self, arrivals: ArrivalsView, now_ns: int) -> int:  # noqa: ARG002
        if arrivals.overtaken(0) >= self._max_overtaken:
            return 0
        return self._preference.best(arrivals, min(len(arrivals), self._lookahead))
