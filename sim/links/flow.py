"""A flow: bytes on their way along a path of links."""

from __future__ import annotations

from collections.abc import Callable

from simpy import Event

from sim.engine.clock import Clock, Priority
from sim.links.link import Link
from sim.links.rate_class import RateClass


class Flow:
    """Made by `Fabric.start` and `Fabric.hold`.

    num_bytes     what it moves; None: it stands until it is cancelled, and is told what it moved (`credit`)
    owner         in whose name: "offload", "prefetch", "weights", "step"...
    enters_ns     when its first byte is on the links: its start and its latency
    ended_ns      when it ended or was cancelled; None before
    moved_bytes   once it ended: all, or the whole bytes that were across when it was cancelled
    """

    __slots__ = (
        "_done",
        "_env",
        "cancelled",
        "ended_ns",
        "enters_ns",
        "index",
        "moved_bytes",
        "num_bytes",
        "on_end",
        "owner",
        "rate_class",
        "started_ns",
    )

    def __init__(
        self,
        env: Clock,
        index: int,
        rate_class: RateClass,
        num_bytes: int | None,
        owner: str,
        latency_ns: int,
        on_end: Callable[[Flow], None] | None,
    ) -> None:
        self._env = env
        self.index = index
        self.rate_class = rate_class
        self.num_bytes = num_bytes
        self.owner = owner
        self.started_ns = env.now_ns
        self.enters_ns = self.started_ns + latency_ns
        self.on_end = on_end
        self.ended_ns: int | None = None
        self.cancelled = False
        self.moved_bytes = 0
        self._done: Event | None = None

    @property
    def path(self) -> tuple[Link, ...]:
        return self.rate_class.path

    @property
    def bytes_per_s(self) -> float:
        """Current rate; 0 while it is not on the links."""
        return self.rate_class.bytes_per_s if self in self.rate_class.members else 0.0

    def share_of(self, link: Link) -> float:
        """The part of a link's bandwidth that is the flow's now; exactly 1.0 where nothing else takes of it."""
        if self not in self.rate_class.members:
            return 0.0
        rate = self.rate_class.rate
        return rate.numerator * self.path.count(link) / (rate.denominator * link.bytes_per_s)

    def credit(self, num_bytes: int) -> None:
        """Tell a standing flow what it moved."""
        self.moved_bytes += num_bytes
        for link in self.path:
            link.credit(self.owner, num_bytes)

    @property
    def done(self) -> Event:
        """An event to wait for; its value is the flow, ended or cancelled."""
        if self._done is None:
            self._done = Event(self._env)
            if self.ended_ns is not None:
                self._give_done()
        return self._done

    def end(self, moved_bytes: int, *, cancelled: bool = False) -> None:
        """Called by the fabric, once."""
        self.ended_ns = self._env.now_ns
        self.moved_bytes = moved_bytes
        self.cancelled = cancelled
        if self._done is not None:
            self._give_done()

    def _give_done(self) -> None:
        event = self.done
        event._ok = True  # noqa: SLF001  as Event.succeed does, but with our priority
        event._value = self  # noqa: SLF001
        self._env.schedule(event, Priority.FLOW_END)  # type: ignore[arg-type]
