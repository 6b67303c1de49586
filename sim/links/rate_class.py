"""Flows that always run at one rate: those with the same path, weight and limit.

One running total says how much each of them has moved since any moment, so a flow ends where the total reaches what
it was when the flow entered plus the flow's bytes: the virtual time of generalised processor sharing (Parekh and
Gallager, IEEE/ACM Transactions on Networking 1(3), 1993). A change of the rate touches the total, not the flows.

The total is an exact fraction: a whole number of units, of which `unit` make 1e-9 bytes. Bandwidths are whole bytes
per second and times whole nanoseconds, so the denominators come from sums of weights alone; their least common
multiple bounds `unit` however long the links are busy. Nothing is rounded but the end of a flow: up, to the next
whole nanosecond, to which it keeps its share.
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from typing import TYPE_CHECKING

from sim.engine.clock import NS_PER_S
from sim.links.link import Link
from sim.links.sharing import Demand

if TYPE_CHECKING:
    from sim.links.flow import Flow


class RateClass:
    """The flows of one path, weight and limit that are on the links now.

    end_ns     when the first of them ends if nothing changes; None: none of them will
    planned    whether `end_ns` is that of the present rate and members
    wake_ns    the time at which the fabric looks at the class next, not after `end_ns`
    """

    def __init__(self, index: int, path: tuple[Link, ...], weight: int, max_bytes_per_s: int | None) -> None:
        self.index = index
        self.path = path
        self.weight = weight
        self.max_bytes_per_s = max_bytes_per_s
        self.members: dict[Flow, int | None] = {}  # the total at which each ends; None: it stands
        self.owners: dict[str, int] = {}  # how many flows each has
        self.rate = Fraction(0)  # of each flow [bytes/s]
        self.bytes_per_s = 0.0
        self.end_ns: int | None = None
        self.planned = True
        self.wake_ns: int | None = None
        self._total = 0
        self._unit = 1
        self._per_ns = 0  # units in a nanosecond, at this rate
        self._since_ns = 0  # when `_total` was brought up to date
        self._ends: list[tuple[int, int, Flow]] = []  # heap of (total at the end, flow's index, flow)

    @property
    def demand(self) -> Demand:
        path = tuple(link.index for link in self.path)
        return Demand(path, len(self.members), self.weight, self.max_bytes_per_s)

    def enter(self, flow: Flow, now_ns: int) -> None:
        self._settle(now_ns)
        end = None
        if flow.num_bytes is not None:
            end = self._total + flow.num_bytes * NS_PER_S * self._unit
            heappush(self._ends, (end, flow.index, flow))
        self.members[flow] = end
        self.planned = False
        self.owners[flow.owner] = self.owners.get(flow.owner, 0) + 1

    def leave(self, flow: Flow) -> None:
        del self.members[flow]
        self.planned = False
        self.owners[flow.owner] -= 1

    def set_rate(self, rate: Fraction, now_ns: int) -> None:
        """All flows run at `rate` from now on."""
        self._settle(now_ns)
        factor = lcm(self._unit, rate.denominator) // self._unit
        if factor > 1:
            self._unit *= factor
            self._total *= factor
            self._ends = [(end * factor, index, flow) for end, index, flow in self._ends]
            self.members = {f: None if end is None else end * factor for f, end in self.members.items()}
        self.rate = rate
        self.planned = False
        self.bytes_per_s = float(rate)
        self._per_ns = rate.numerator * (self._unit // rate.denominator)

    def plan_end(self, now_ns: int) -> None:
        """Bring `end_ns` up to date, after a change of the rate or of the members."""
        self.planned = True
        self._settle(now_ns)
        ends = self._ends
        while ends and ends[0][2] not in self.members:  # cancelled
            heappop(ends)
        if ends:
            left = max(ends[0][0] - self._total, 0)
            self.end_ns = now_ns - -left // self._per_ns
        else:
            self.end_ns = None

    def pop_ended(self, now_ns: int) -> list[Flow]:
        """The flows whose bytes are across by now; they are still members."""
        self._settle(now_ns)
        ended = []
        while self._ends and self._ends[0][0] <= self._total:
            flow = heappop(self._ends)[2]
            if flow in self.members:
                ended.append(flow)
        return ended

    def moved_bytes(self, flow: Flow, now_ns: int) -> int:
        """Whole bytes that a member has across by now."""
        end = self.members[flow]
        if end is None or flow.num_bytes is None:
            return flow.moved_bytes
        self._settle(now_ns)
        return flow.num_bytes - -(-max(end - self._total, 0) // (NS_PER_S * self._unit))

    def _settle(self, now_ns: int) -> None:
        if self._ends:
            self._total += self._per_ns * (now_ns - self._since_ns)
        else:  # nobody counts from before
            self._total = 0
            self._unit = self.rate.denominator
            self._per_ns = self.rate.numerator
        self._since_ns = now_ns
