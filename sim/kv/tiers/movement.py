"""What is on its way between tiers: the payloads of transfers."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.kv.allocators.decision import Contents, Holding
from sim.kv.tiers.store import TierStore


@dataclass(slots=True, eq=False)
class Copy:
    """Blocks of HBM that are copied to host memory; `holding` keeps them meanwhile, if anybody does."""

    contents: list[int]
    slots: list[int]
    holding: Holding | None = None


@dataclass(slots=True, eq=False)
class Demotion:
    """Blocks that leave host memory for the disk. On the way they are in a buffer, and found nowhere."""

    contents: list[int]


@dataclass(slots=True, eq=False)
class Load:
    """Blocks that come to HBM, into `slots`; `parts` of them, by tier, are still on their way or to be sent.

    `waiting` are those who hold some of the blocks and wait for them.
    """

    slots: Contents
    owner: str
    parts: list[Part] = field(default_factory=list)
    waiting: list[Holding] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Part:
    """The blocks of a load that come from one tier."""

    load: Load
    store: TierStore
    contents: list[int]
    slots: list[int]
