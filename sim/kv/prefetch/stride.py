"""Stride prefetching: where three reads in a row are equally far apart, the next ones along follow.

A stream is what a step reads of one sequence in one layer group, from the oldest block to the newest. It is the
reference prediction table of Baer and Chen (Supercomputing 1991), with the stream in the place of the instruction.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sim.kv.access.reads import AccessModel
from sim.kv.prefetch.decision import Decision, Pages, PagingView


class Stride(BaseModel):
    """Continue the strides of the last reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["stride"] = "stride"
    depth: Annotated[int, Field(strict=True, ge=1, le=1024)] = 3
    """Pages ahead along each stride."""

    def build(self, access: AccessModel) -> StridePrefetcher:  # noqa: ARG002
        return StridePrefetcher(self.depth)


class StridePrefetcher:
    """The nearest continuation of every stride first, then the second of each..."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def plan(self, view: PagingView) -> Decision:
        reads = view.reads
        stride = np.diff(reads.block)
        same_stream = (np.diff(reads.sequence) == 0) & (np.diff(reads.group) == 0)
        steady = (stride[1:] == stride[:-1]) & same_stream[1:] & same_stream[:-1]
        last = np.flatnonzero(steady) + 2  # of three reads
        at, ahead = reads[last], stride[last - 1]
        return Decision(
            Pages.joined(
                [Pages(at.sequence, at.group, at.block + k * ahead) for k in range(1, self._depth + 1)]
            )
        )
