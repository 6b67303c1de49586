"""A link: bandwidth that flows share, and the account of who used it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.engine.clock import NS_PER_S

if TYPE_CHECKING:
    from sim.links.rate_class import RateClass


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What a link did for somebody, or for all, over a time.

    busy_s                  with at least one of their flows on the link [s]
    utilization             part of what the link could have moved in that time (0 to 1)
    effective_bytes_per_s   bytes over busy time; 0 where there was none
    """

    bytes_total: int
    busy_s: float
    utilization: float
    effective_bytes_per_s: float


class Account:
    """Bytes and busy time of one owner on one link."""

    __slots__ = ("busy_ns", "bytes_total", "flows", "since_ns")

    def __init__(self) -> None:
        self.bytes_total = 0
        self.busy_ns = 0
        self.flows = 0
        self.since_ns = 0

    def enter(self, now_ns: int) -> None:
        if not self.flows:
            self.since_ns = now_ns
        self.flows += 1

    def leave(self, now_ns: int) -> None:
        self.flows -= 1
        if not self.flows:
            self.busy_ns += now_ns - self.since_ns

    def use(self, now_ns: int, duration_ns: int, in_flight_bytes: int, bytes_per_s: int) -> LinkUse:
        moved = self.bytes_total + in_flight_bytes
        busy_s = (self.busy_ns + (now_ns - self.since_ns if self.flows else 0)) / NS_PER_S
        could = bytes_per_s * duration_ns / NS_PER_S
        return LinkUse(moved, busy_s, moved / could if could else 0.0, moved / busy_s if busy_s else 0.0)


class Link:
    """One direction of a bus, a memory, a network port or a disk. Made by `Fabric.add`.

    classes   the rate classes with flows on it
    waiting   when flows that are in their latency will enter, by the flow's index [ns]
    """

    def __init__(self, index: int, name: str, bytes_per_s: int) -> None:
        self.index = index
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.classes: dict[RateClass, None] = {}
        self.waiting: dict[int, int] = {}
        self.total = Account()
        self.owners: dict[str, Account] = {}
        self.watchers: list[Callable[[Link], None]] = []

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {self.bytes_per_s} bytes/s)"

    def watch(self, callback: Callable[[Link], None]) -> None:
        """Call back, at once, whenever a flow entered or left this link, or the rate of one on it changed."""
        self.watchers.append(callback)

    def enter(self, owner: str, now_ns: int) -> None:
        self.total.enter(now_ns)
        self._account(owner).enter(now_ns)

    def leave(self, owner: str, now_ns: int) -> None:
        self.total.leave(now_ns)
        self.owners[owner].leave(now_ns)

    def credit(self, owner: str, num_bytes: int) -> None:
        self.total.bytes_total += num_bytes
        self._account(owner).bytes_total += num_bytes

    def _account(self, owner: str) -> Account:
        return self.owners.get(owner) or self.owners.setdefault(owner, Account())
