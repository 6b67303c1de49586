"""What a router sees and what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sim.engine.request import RequestTable


Changes = tuple[set[int], set[int]]
"""Contents of KV blocks that have come into a prefix cache, and that have gone."""


class RequestView:
    """The request that has arrived, as its router knows it: never how long the answer will be."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self.index = 0

    @property
    def input_tokens(self) -> int:
        """Length of the prompt."""
        return self._table.input_tokens[self.index]

    @property
    def session(self) -> int | None:
        """Code of the session that it belongs to; None where nobody said."""
        code = self._table.session[self.index]
        return None if code < 0 else code

    @property
    def prompt_blocks(self) -> NDArray[np.int64]:
        """Content of the full KV blocks of the prompt; equal content is an equal prompt up to there.

        Empty where the workload does not say which prompts share a prefix.
        """
        return self._table.prompt_blocks(self.index)


@dataclass(slots=True)
class ReplicaView:
    """A replica as its router knows it: as of its last completed step, or older where signals are delayed.

    in_flight   requests sent there and not reported finished; the router counts what it sends by itself
    cached      content of the KV blocks in its prefix cache, where it reports them
    """

    index: int
    in_flight: int = 0
    cached: set[int] = field(default_factory=set)

    def learn(self, finished: int, changes: Changes | None) -> None:
        """A report: so many requests have finished, and this has come into the cache and gone."""
        self.in_flight -= finished
        if changes is not None:
            self.cached |= changes[0]
            self.cached -= changes[1]

    def cached_run(self, blocks: Sequence[int]) -> int:
        """How many of the first blocks of a prompt are in the cache."""
        cached = self.cached
        return next((place for place, block in enumerate(blocks) if block not in cached), len(blocks))


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

    @property
    def watches_caches(self) -> bool:
        """Whether replicas are to report what is in their prefix caches."""

    def build(self) -> Router:
        """Make the router of one cluster."""
