"""The oracle: the block whose next use is farthest away goes first (Belady, IBM Systems Journal 5(2), 1966).

No policy that must take in every block has more hits per block (Mattson, Gecsei, Slutz, Traiger, IBM Systems
Journal 9(2), 1970). Leading runs and tokens are other aims: there it is a good policy, not a bound. Nor is it one in
an engine, where it goes by the order of uses that it was given, while the real order depends on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.kv.eviction.scored import ScoredEviction
from workloads.errors import ConfigError


class Belady(BaseModel):
    """Evict the block whose next use is farthest away; needs to be told all uses beforehand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["belady"] = "belady"

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> ScoredEviction[int]:  # noqa: ARG002
        if uses is None:
            raise ConfigError(
                "eviction: belady must know all uses to come, and only the replay of a trace does"
            )
        return ScoredEviction(Imminence(uses))


class Imminence:
    """Minus the place of a block's next use among all uses; a block without one counts as used at the end."""

    def __init__(self, uses: Sequence[int]) -> None:
        blocks = np.asarray(uses, dtype=np.int64)
        order = np.argsort(blocks, kind="stable")
        again = np.flatnonzero(np.diff(blocks[order]) == 0)
        after = np.full(blocks.size, blocks.size)
        after[order[again]] = order[again + 1]
        self._end = blocks.size
        self._after: list[int] = after.tolist()  # the next use of the block of each use
        first, place = np.unique(blocks, return_index=True)
        self._next: dict[int, int] = dict(zip(first.tolist(), place.tolist(), strict=True))

    def __call__(self, block: int, position: int, before: int | None) -> int:  # noqa: ARG002
        this = self._next.get(block, self._end)
        self._next[block] = after = self._after[this] if this < self._end else self._end
        return -after
