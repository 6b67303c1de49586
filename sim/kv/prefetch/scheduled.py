"""Scheduled prefetching: the batch of the next step is known, so what follows from it is fetched as a plan.

As in a captured graph, whose copies are fixed before it runs. What an engine can plan is what follows from the
lengths alone: of full and sliding-window attention every page, of top-k attention the nearest tokens and the sinks.
The next step's pages are kept until it has read them. A sequence may end before: nobody knows when it will.

One step ahead is all that there is to plan: windows move forwards and sinks stay, so of the pages that exist now,
later steps read none for certain that the next one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sim.kv.access.reads import AccessModel, Reads
from sim.kv.prefetch.decision import Decision, Pages, PagingView


class Scheduled(BaseModel):
    """Fetch what the next step reads for certain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["scheduled"] = "scheduled"

    def build(self, access: AccessModel) -> Planner:
        return Planner(access.known)


class Planner:
    """Pages of the next step first, low layers before high ones; then those of the step after..."""

    def __init__(self, reads: Callable[[int, int], Reads], depth: int = 1) -> None:
        self._reads = reads
        self._depth = depth

    def plan(self, view: PagingView) -> Decision:
        steps = [self._step(view, ahead) for ahead in range(1, self._depth + 1)]
        return Decision(Pages.joined(steps), keep=steps[0])

    def _step(self, view: PagingView, ahead: int) -> Pages:
        parts = []
        for place, (key, context_tokens) in enumerate(view.sequences):
            reads = self._reads(key, context_tokens + ahead)
            parts.append(Pages(np.full(reads.block.size, place), reads.group, reads.block))
        pages = Pages.joined(parts)
        pages = pages[pages.block < view.num_blocks[pages.sequence]]  # the others are written, not fetched
        return pages[np.argsort(pages.group, kind="stable")]
