"""Simulated time: integer nanoseconds on a SimPy environment, ties broken by kind of event.

At one instant, flow ends come first, then step ends, then arrivals, then step starts; a run that is ended ends after
them. SimPy orders its heap by (time, priority, insertion); insertion order differs between fast-forward on and off, so
every event of this simulator carries one of these priorities and never relies on insertion.
"""

from __future__ import annotations

from enum import IntEnum

from simpy import Environment, Event

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Clock(Environment):
    """A SimPy environment that counts in whole nanoseconds."""

    @property
    def now_ns(self) -> int:
        """Current time; an integer, since every delay is one."""
        return self._now  # type: ignore[return-value]


class Priority(IntEnum):
    """What comes first at the same instant; lower is earlier."""

    FLOW_END = 0
    STEP_END = 1
    ARRIVAL = 2
    STEP_START = 3
    RUN_END = 4


class At(Event):
    """An event `delay` nanoseconds from now at a given priority: SimPy's Timeout, which has only one."""

    def __init__(self, env: Clock, delay: int, priority: int) -> None:
        self.env: Clock = env
        self.callbacks = []
        self._value = None
        self._ok = True
        env.schedule(self, priority, delay)  # type: ignore[arg-type]

    def moved_to(self, delay: int, priority: int) -> At:
        """Let whoever waits for this event wait for an earlier one; this one then passes unnoticed."""
        earlier = At(self.env, delay, priority)
        earlier.callbacks, self.callbacks = self.callbacks, []
        return earlier


class Signal:
    """A wake-up that one process waits for and others give; giving it twice is giving it once."""

    def __init__(self, env: Clock) -> None:
        self._env = env
        self._event: Event | None = None

    def wait(self) -> Event:
        self._event = Event(self._env)
        return self._event

    def give(self, priority: int) -> None:
        event, self._event = self._event, None
        if event is not None:
            event._ok = True  # noqa: SLF001  as Event.succeed does, but with our priority
            event._value = None  # noqa: SLF001
            self._env.schedule(event, priority)  # type: ignore[arg-type]
