"""Prefetchers of tests: some of every kind, and one that does what a test says."""

from __future__ import annotations

import numpy as np

from sim.kv.prefetch import AttentionWeighted, NoPrefetch, Oracle, Scheduled, Stride
from sim.kv.prefetch.decision import NO_PAGES, Decision, Pages
from tests.sim.kv.naive_pages import Page

POLICIES = [
    NoPrefetch(),
    Stride(),
    AttentionWeighted(),
    AttentionWeighted(second_level_weight=0.0),
    Scheduled(),
    Oracle(),
    Oracle(depth=3),
]


class Scripted:
    """Names what the test says, by keys of sequences."""

    def __init__(self) -> None:
        self.fetch: list[Page] = []
        self.keep: list[Page] = []

    def plan(self, view) -> Decision:
        place = {key: i for i, (key, _) in enumerate(view.sequences)}

        def pages(named: list[Page]) -> Pages:
            rows = [(place[key], group, block) for key, group, block in named if key in place]
            return Pages(*np.array(rows, dtype=np.int64).reshape(-1, 3).T) if rows else NO_PAGES

        return Decision(pages(self.fetch), pages(self.keep))
