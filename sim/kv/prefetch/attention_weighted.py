"""Attention-weighted prefetching: what mattered in this step, and the surroundings of what mattered much.

First level: of every sequence and layer group the `top` pages with most attention mass, where HBM lost them since.
Second level: the pages around those of them whose share of the mass reaches `second_level_weight`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sim.kv.access.reads import AccessModel
from sim.kv.prefetch.decision import Decision, Pages, PagingView


class AttentionWeighted(BaseModel):
    """Fetch the heaviest pages of the last step, and the neighbours of the heaviest of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["attention_weighted"] = "attention_weighted"
    top: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 3
    """Pages of the first level, per sequence and layer group."""
    second_level_weight: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the attention mass from which on a page's neighbours are fetched as well."""
    depth: Annotated[int, Field(strict=True, ge=0, le=1024)] = 3
    """Neighbours of the second level: this many blocks after and before."""

    def build(self, access: AccessModel) -> AttentionWeightedPrefetcher:  # noqa: ARG002
        return AttentionWeightedPrefetcher(self)


class AttentionWeightedPrefetcher:
    """The heaviest first; then neighbours, the nearest first, the successor before the predecessor."""

    def __init__(self, config: AttentionWeighted) -> None:
        self._config = config

    def plan(self, view: PagingView) -> Decision:
        reads, weights = view.reads, view.weights
        order = np.lexsort((-weights, reads.sequence, reads.group))
        sequence, group = reads.sequence[order], reads.group[order]
        starts = np.ones(order.size, dtype=np.bool_)
        starts[1:] = (np.diff(sequence) != 0) | (np.diff(group) != 0)
        place = np.arange(order.size)
        rank = place - np.maximum.accumulate(np.where(starts, place, 0))
        top = order[rank < self._config.top]
        top = top[np.argsort(-weights[top], kind="stable")]
        first = reads[top]
        centre = first[weights[top] >= self._config.second_level_weight]
        sides = [side for distance in range(1, self._config.depth + 1) for side in (distance, -distance)]
        second = [Pages(centre.sequence, centre.group, centre.block + side) for side in sides]
        return Decision(Pages.joined([first, *second]))
