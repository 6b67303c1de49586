"""The client: when which request goes to the router."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from simpy import Event

from sim.engine.clock import At, Clock, Priority
from sim.engine.request import RequestTable
from workloads.trace import Turns


class Client:
    """Sends requests, at most `max_concurrency` at a time; the others are held back on the client's side.

    A request goes out at its time; one that has a predecessor goes out a think time after that was done or refused, and
    its `arrival_ns` is filled in then. With all times zero this is a closed loop: a request goes out when another one
    is done. A request takes over the place of its predecessor, so a session keeps its place to its last turn.

    What is due at the same instant goes out in the order of the requests, and those held back after it: nothing depends
    on the order of events at one instant, which may differ with fast-forward.
    """

    def __init__(
        self,
        env: Clock,
        table: RequestTable,
        arrive: Callable[[int], None],
        max_concurrency: int | None,
    ) -> None:
        self._env = env
        self._arrival_ns = table.arrival_ns
        self._arrive = arrive
        self._places = max_concurrency
        self._held: deque[int] = deque()
        self._followers = _followers(table.turns)
        self._due: list[tuple[int, int]] = []  # heap of (when, which) of those whose predecessor is done
        self._timed = iter(_timed(len(table), table.turns))
        self._next = next(self._timed, None)
        if self._next is not None:
            self._wake_in(self._arrival_ns[self._next])

    def done(self, indices: Sequence[int]) -> None:
        """Note that these requests are done or refused; what follows on them goes out after the step that ended."""
        for index in indices:
            follower = self._followers.get(index)
            if follower is not None:
                which, think_ns = follower
                heapq.heappush(self._due, (self._env.now_ns + think_ns, which))
                self._wake_in(think_ns)
            elif self._places is not None:
                self._places += 1
                if self._held:
                    self._wake_in(0)

    def _wake_in(self, delay_ns: int) -> None:
        At(self._env, delay_ns, Priority.ARRIVAL).callbacks.append(self._wake)

    def _wake(self, _: Event) -> None:
        """Send everything that is due now."""
        while True:
            timed_ns = None if self._next is None else self._arrival_ns[self._next]
            if self._due and (timed_ns is None or self._due[0] < (timed_ns, self._next)):
                if self._due[0][0] <= self._env.now_ns:
                    self._send(heapq.heappop(self._due)[1])
                    continue
            elif timed_ns is not None and timed_ns <= self._env.now_ns:
                self._release_timed()
                continue
            if not (self._held and self._places):
                return
            self._places -= 1
            self._send(self._held.popleft())

    def _release_timed(self) -> None:
        index, self._next = self._next, next(self._timed, None)
        assert index is not None
        if self._next is not None and self._arrival_ns[self._next] > self._env.now_ns:
            self._wake_in(self._arrival_ns[self._next] - self._env.now_ns)
        if self._places is None:
            self._send(index)
        else:
            self._held.append(index)

    def _send(self, index: int) -> None:
        self._arrival_ns[index] = self._env.now_ns
        self._arrive(index)


def _followers(turns: Turns | None) -> dict[int, tuple[int, int]]:
    """Who follows on each request that has a successor, and after which think time [ns]."""
    if turns is None:
        return {}
    which = np.flatnonzero(turns.predecessor >= 0)
    pairs = zip(which.tolist(), turns.think_ns[which].tolist(), strict=True)
    return dict(zip(turns.predecessor[which].tolist(), pairs, strict=True))


def _timed(count: int, turns: Turns | None) -> Iterable[int]:
    """The requests that wait for nobody, in order."""
    return range(count) if turns is None else np.flatnonzero(turns.predecessor < 0).tolist()
