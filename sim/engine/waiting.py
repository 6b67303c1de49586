"""Requests that wait for an engine: one queue, or one for each pool of KV memory.

Lanes share the prompt tokens of steps by start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): each has a
virtual time, which its prompts advance by their tokens over the lane's weight, and the lane that is furthest behind is
next. A lane that was empty, or could not be served, does not save up: it is lifted to the virtual time of the lane
served last. Of two lanes that could both be served all the while, neither then gets more tokens per weight than the
other by more than the longest prompt of each over its weight.

A lane is first come first served, preempted sequences ahead of all that arrived. Where the batcher reorders, it
chooses among the arrivals; its choice stands until the request is admitted, or nothing runs any more, so that it does
not matter how often the engine looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sized
from itertools import islice

from sim.batching.decision import QueueOrder
from sim.engine.request import RequestTable, Sequence
from sim.kv.allocators.decision import Allocator, Claim


class Lane:
    """A queue. `claim` is what its head asks for, kept while the head waits."""

    __slots__ = ("arrived", "claim", "index", "overtaken", "resumed", "start", "weight")

    def __init__(self, index: int, weight: float) -> None:
        self.index = index
        self.weight = weight
        self.start = 0.0  # virtual time at which its next prompt starts
        self.resumed: deque[Sequence] = deque()  # preempted
        self.arrived: deque[int] = deque()
        self.claim: Claim | None = None
        self.overtaken: dict[int, int] = {}  # how often others were chosen before a request

    def __len__(self) -> int:
        return len(self.resumed) + len(self.arrived)


class WaitingQueue:
    """All lanes of an engine. `lane_of` names each request's; None: there is one lane."""

    def __init__(
        self,
        table: RequestTable,
        allocator: Allocator,
        order: QueueOrder | None,
        lane_of: Sized[int] | None = None,
        weights: Sized[float] = (1.0,),
    ) -> None:
        self.lanes = [Lane(index, weight) for index, weight in enumerate(weights)]
        self.coming: deque[tuple[int, int]] = (
            deque()
        )  # (when it came, which) of requests that no plan has seen
        self._virtual = 0.0  # virtual time of the lane served last
        self._table = table
        self._allocator = allocator
        self._order = order
        self._lane_of = lane_of
        self.shared = len(self.lanes) > 1  # so that it matters whose turn it is

    def __len__(self) -> int:
        if self._lane_of is None:
            lane = self.lanes[0]
            return len(lane.resumed) + len(lane.arrived)
        return sum(len(lane) for lane in self.lanes)

    def lane_of(self, index: int) -> Lane:
        return self.lanes[0] if self._lane_of is None else self.lanes[self._lane_of[index]]

    def close(self, preempted: Sized[Sequence]) -> list[Lane]:
        """Pass over the lanes of sequences that gave way, and return them, each once."""
        lanes: dict[int, Lane] = {}
        for seq in preempted:
            lane = self.lane_of(seq.index)
            if lane.index not in lanes:
                lanes[lane.index] = lane
                self.pass_over(lane)
        return list(lanes.values())

    def come(self, index: int, now_ns: int) -> None:
        """A request is here, and arrives in its lane when a plan sees it."""
        self.coming.append((now_ns, index))

    def see(self, until_ns: int) -> None:
        """Let those arrive that came up to this time."""
        while self.coming and self.coming[0][0] <= until_ns:
            self.arrive(self.coming.popleft()[1])

    def arrive(self, index: int) -> None:
        lane = self.lane_of(index)
        if not len(lane):
            self.pass_over(lane)
        lane.arrived.append(index)
        if self._order is not None:
            self._order.arrived(self._table.input_tokens[index])

    def resume_first(self, seq: Sequence) -> None:
        """Put a preempted sequence in front of its lane."""
        lane = self.lane_of(seq.index)
        if not len(lane):
            self.pass_over(lane)
        lane.resumed.appendleft(seq)
        lane.claim = None

    def head(self, closed: Sized[Lane] = ()) -> Lane | None:
        """The lane whose turn it is, of those that are not closed."""
        if self._lane_of is None:
            lane = self.lanes[0]
            return lane if (lane.resumed or lane.arrived) and not closed else None
        turns = [lane for lane in self.lanes if len(lane) and lane not in closed]
        return min(turns, key=lambda lane: lane.start, default=None)

    def pass_over(self, lane: Lane) -> None:
        """A lane has nothing that could be served: what others get meanwhile is not made up for."""
        lane.start = max(lane.start, self._virtual)

    def served(self, lane: Lane, tokens: int) -> None:
        """So many tokens of a prompt of the lane were admitted to be computed."""
        self._virtual = max(self._virtual, lane.start)
        lane.start += tokens / lane.weight

    @staticmethod
    def _first(lane: Lane) -> int:
        return lane.resumed[0].index if lane.resumed else lane.arrived[0]

    def oldest(self) -> int:
        """The request that has waited for the longest time; there must be one."""
        arrival = self._table.arrival_ns
        return min((self._first(lane) for lane in self.lanes if len(lane)), key=lambda i: (arrival[i], i))

    def claim(self, lane: Lane, now_ns: int) -> Claim:
        """What the head of the lane asks for; the batcher may choose who that is."""
        table = self._table
        if lane.resumed:
            seq = lane.resumed[0]
            if lane.claim is None or lane.claim.index != seq.index:
                lane.claim = self._claim(lane, seq.index, seq.target)
        elif lane.claim is None:
            index = lane.arrived[0]
            if self._order is not None and len(lane.arrived) > 1:
                index = lane.arrived[self._order.choose(Arrivals(lane, table, self._allocator), now_ns)]
            lane.claim = self._claim(lane, index, table.input_tokens[index])
        return lane.claim

    def _claim(self, lane: Lane, index: int, tokens: int) -> Claim:
        table, allocator = self._table, self._allocator
        final = table.input_tokens[index] + table.output_tokens[index] - 1
        contents = table.contents(index, allocator.block_size) if allocator.finds_prefixes else None
        return Claim(index, tokens, final, lane.index, contents)

    def choose_anew(self) -> None:
        """Forget whom the batcher chose and the engine has not admitted."""
        if self._order is not None:
            for lane in self.lanes:
                lane.claim = None

    def take(self, lane: Lane) -> Sequence | int:
        """Remove the one whose claim stands: a preempted sequence, or a request that never ran."""
        claim, lane.claim = lane.claim, None
        assert claim is not None
        if self._order is not None:
            self._order.taken(claim.tokens)
        if lane.resumed:
            return lane.resumed.popleft()
        if lane.arrived[0] == claim.index:
            lane.arrived.popleft()
        else:
            at = lane.arrived.index(claim.index)
            for index in islice(lane.arrived, at):
                lane.overtaken[index] = lane.overtaken.get(index, 0) + 1
            del lane.arrived[at]
        lane.overtaken.pop(claim.index, None)
        return claim.index


class Arrivals:
    """What a batcher that reorders sees of a lane: requests by their place, the oldest first."""

    def __init__(self, lane: Lane, table: RequestTable, allocator: Allocator) -> None:
        self._lane = lane
        self._table = table
        self._allocator = allocator

    def __len__(self) -> int:
        return len(self._lane.arrived)

    def tokens(self, place: int) -> int:
        """Length of the prompt."""
        return self._table.input_tokens[self._lane.arrived[place]]

    def arrival_ns(self, place: int) -> int:
        return self._table.arrival_ns[self._lane.arrived[place]]

    def overtaken(self, place: int) -> int:
        """How often a request that came later was taken before this one."""
        return self._lane.overtaken.get(self._lane.arrived[place], 0)

    def cached_tokens(self, place: int) -> int:
        """Tokens of the prompt that the prefix cache holds now."""
        allocator = self._allocator
        if not allocator.finds_prefixes:
            return 0
        index = self._lane.arrived[place]
        contents = self._table.contents(index, allocator.block_size)
        return allocator.find_prefix(Claim(index, self.tokens(place), 0, self._lane.index, contents))
