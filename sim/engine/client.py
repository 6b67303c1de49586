"""The client: when which request goes to the router."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence

from simpy import Event

from sim.engine.clock import At, Clock, Priority
from sim.engine.request import RequestTable


class Client:
    """Sends requests at their times, at most `max_concurrency` in flight; the others wait on the client's side.

    With all times zero this is a closed loop: a request goes out when another one is done.
    """

    def __init__(
        self,
        env: Clock,
        table: RequestTable,
        arrive: Callable[[int], None],
        max_concurrency: int | None,
    ) -> None:
        self._env = env
        self._table = table
        self._arrive = arrive
        self._slots = max_concurrency
        self._held: deque[int] = deque()
        env.process(self._run())

    def done(self, indices: Sequence[int]) -> None:
        """Note that these requests are done: as many of those held go out now, after the step that ended."""
        if self._slots is None:
            return
        self._slots += len(indices)
        for _ in range(min(len(indices), len(self._held))):
            At(self._env, 0, Priority.ARRIVAL).callbacks.append(self._send_held)

    def _run(self) -> Generator[Event, None, None]:
        env, arrive = self._env, self._arrive
        for index, due_ns in enumerate(self._table.arrival_ns):
            if due_ns > env.now_ns or index == 0:
                yield At(env, due_ns - env.now_ns, Priority.ARRIVAL)
            if self._slots is None:
                arrive(index)
            elif self._slots > 0:
                self._slots -= 1
                arrive(index)
            else:
                self._held.append(index)

    def _send_held(self, _: Event) -> None:
        if self._held and self._slots:
            self._slots -= 1
            index = self._held.popleft()
            self._table.arrival_ns[index] = self._env.now_ns
            self._arrive(index)
