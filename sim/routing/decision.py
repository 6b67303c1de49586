"""What a router sees and what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sim.engine.request import RequestTable


class RequestView:
    """The request that has arrived, as its router knows it: never how long the answer will be."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self.index = 0

    @property
    def input_tokens(self) -> int:
        """Length of the prompt."""
        return self._table.input_tokens[self.index]

    def prompt_blocks(self, block_size: int) -> NDArray[np.int64]:
        """Content of the full blocks of the prompt: the first n are equal where the first n blocks are."""
        return self._table.contents(self.index, block_size)[: self.input_tokens // block_size]


@dataclass(slots=True)
class ReplicaView:
    """A replica as its router knows it: as of its last completed step, or older where signals are delayed.

    in_flight   requests sent there and not reported finished; the router counts what it sends by itself
    """

    index: int
    in_flight: int = 0


class Router(Protocol):
    """A decision per request; ties and chance come from the generator that is given, never from elsewhere."""

    def route(
        self, request: RequestView, replicas: Sequence[ReplicaView], now_ns: int, rng: np.random.Generator
    ) -> int:
        """Return the index of the replica that gets the request."""


class RouterConfig(Protocol):
    """The part of a scenario that names a router."""

    reads_prefixes: ClassVar[bool]
    """Whether it asks for the blocks of prompts."""

    def build(self) -> Router:
        """Make the router of one cluster."""
