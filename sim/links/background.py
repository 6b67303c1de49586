"""Flows that others have on a replica's links: a neighbour's weight load, a checkpoint upload."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from simpy import Event

from sim.engine.clock import At, Clock, Priority
from sim.links.fabric import Fabric
from sim.links.link import Link


@dataclass(frozen=True, slots=True)
class Background:
    """`num_bytes` at up to `bytes_per_s` over a route, once or again and again.

    start_ns   of the first
    every_ns   from start to start, or later where one takes longer than that; None: once
    replica    whose links, by index; None: those of each
    """

    owner: str
    route: str
    num_bytes: int
    bytes_per_s: int
    start_ns: int = 0
    every_ns: int | None = None
    replica: int | None = None


def run_background(
    env: Clock, fabric: Fabric, path: tuple[Link, ...], background: Background
) -> Generator[Event, None, None]:
    """A process; where it repeats it never ends."""
    due_ns = background.start_ns
    while True:
        yield At(env, due_ns - env.now_ns, Priority.FLOW_END)
        limit = background.bytes_per_s
        yield fabric.start(path, background.num_bytes, background.owner, max_bytes_per_s=limit).done
        if background.every_ns is None:
            return
        due_ns = max(due_ns + background.every_ns, env.now_ns)
