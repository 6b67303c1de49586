"""What a prefetcher is shown, and what it decides. Pure decisions: history and residency in, pages out.

Asked once a step, when the step has all its pages and begins to run: what it names is fetched while the step runs.
Pages of its earlier answers that have not begun to come are forgotten unless it names them again, so that an
answer always stands for the newest knowledge. The same objects serve the simulator and a real engine: no clock, no
device, no links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.kv.access.reads import AccessModel, Float64, Int64


@dataclass(frozen=True, eq=False, slots=True)
class Pages:
    """Pages of the sequences of a step, as columns of one length.

    sequence  place of the sequence in the step's batch
    group     of layers
    block     of the sequence, from 0 at its start
    """

    sequence: Int64
    group: Int64
    block: Int64

    def __len__(self) -> int:
        return int(self.block.size)

    def __getitem__(self, which: NDArray[np.bool_] | Int64 | slice) -> Pages:
        return Pages(self.sequence[which], self.group[which], self.block[which])

    @classmethod
    def joined(cls, parts: Sequence[Pages]) -> Pages:
        """One after the other."""
        parts = [*parts, NO_PAGES]
        return cls(
            np.concatenate([part.sequence for part in parts]),
            np.concatenate([part.group for part in parts]),
            np.concatenate([part.block for part in parts]),
        )


NO_PAGES: Final = Pages(*np.zeros((3, 0), dtype=np.int64))


@dataclass(frozen=True, eq=False, slots=True)
class PagingView:
    """What an engine knows when a step begins to run.

    sequences   (key, context tokens) of the batch
    num_blocks  (sequences,) blocks that each has
    reads       the pages that this step reads, by group, sequence and block
    weights     (reads,) their shares of the attention mass of their (sequence, group): measured by the step, so
                known when it has run; what is named here goes out as the step's layers pass
    """

    sequences: Sequence[tuple[int, int]]
    num_blocks: Int64
    reads: Pages
    weights: Float64


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """What to fetch, in order of urgency.

    fetch  pages that are in HBM, on their way, named before in the same list, or not there at all are passed over,
           and the list is cut where HBM has no more room
    keep   pages that the next step reads for certain: nothing displaces them until then, and there is no more room
           than the others leave. Without them the least recently used pages give way, to prefetches as to all else.
    """

    fetch: Pages
    keep: Pages = NO_PAGES


class Prefetcher(Protocol):
    """Changes state, if it has any, only in `plan`, which is called once a step."""

    def plan(self, view: PagingView) -> Decision:
        """Name the pages to fetch while the step runs."""


class PrefetchConfig(Protocol):
    """The part of a scenario that names a prefetcher."""

    def build(self, access: AccessModel) -> Prefetcher:
        """Make one for an access pattern. Only what follows from lengths (`known`) may be asked of the pattern.

        An oracle asks more.
        """
