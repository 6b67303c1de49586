"""Prefetchers: what each names, against its definition written down naively."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.kv.access import Full, SlidingWindow, TopK
from sim.kv.prefetch import AttentionWeighted, NoPrefetch, Oracle, Scheduled, Stride
from sim.kv.prefetch.decision import Pages, PagingView


@dataclass
class Step:
    """Reads of one step: weights by (group, sequence, block)."""

    weights: dict[tuple[int, int, int], float]
    blocks: list[int] = field(default_factory=lambda: [50, 50])

    def view(self) -> PagingView:
        rows = sorted(self.weights)
        group, sequence, block = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        sequences = [(10 + place, blocks * 16) for place, blocks in enumerate(self.blocks)]
        weights = np.array([self.weights[row] for row in rows], dtype=np.float64)
        return PagingView(sequences, np.array(self.blocks), Pages(sequence, group, block), weights)

    def streams(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for group, sequence, block in sorted(self.weights):
            found.setdefault((group, sequence), []).append(block)
        return found


steps = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 49)), st.floats(0, 1), max_size=60
).map(Step)


def named(pages: Pages) -> list[tuple[int, int, int]]:
    return list(zip(pages.group.tolist(), pages.sequence.tolist(), pages.block.tolist(), strict=True))


@given(steps)
def test_none_names_nothing(step):
    decision = NoPrefetch().build(None).plan(step.view())
    assert not named(decision.fetch)
    assert not named(decision.keep)


@given(steps, st.integers(1, 4))
def test_stride_continues_what_is_steady(step, depth):
    expected = [
        (k, group, sequence, last + k * (last - middle))
        for (group, sequence), blocks in step.streams().items()
        for first, (middle, last) in zip(blocks, pairwise(blocks[1:]), strict=False)
        if last - middle == middle - first
        for k in range(1, depth + 1)
    ]
    decision = Stride(depth=depth).build(None).plan(step.view())
    assert named(decision.fetch) == [tuple(page) for _, *page in sorted(expected)]  # all nearest ones first
    assert not named(decision.keep)


def test_stride_by_example():
    step = Step(dict.fromkeys([(0, 0, 3), (0, 0, 5), (0, 0, 7), (0, 1, 9), (1, 0, 11), (1, 0, 12)], 0.1))
    assert named(Stride(depth=2).build(None).plan(step.view()).fetch) == [(0, 0, 9), (0, 0, 11)]


@given(steps, st.integers(1, 5), st.integers(0, 2), st.sampled_from([0.0, 0.25, 0.9]))
def test_attention_weighted_names_the_heaviest_and_the_neighbours_of_the_heavy(step, top, depth, threshold):
    first = []
    for (group, sequence), blocks in step.streams().items():
        heaviest = sorted(blocks, key=lambda b: (-step.weights[group, sequence, b], b))[:top]
        first += [(group, sequence, block) for block in heaviest]
    second = [
        (group, sequence, block + side)
        for group, sequence, block in first
        if step.weights[group, sequence, block] >= threshold
        for side in range(-depth, depth + 1)
        if side
    ]
    config = AttentionWeighted(top=top, second_level_weight=threshold, depth=depth)
    found = named(config.build(None).plan(step.view()).fetch)
    assert sorted(found[: len(first)]) == sorted(first)
    assert sorted(found[len(first) :]) == sorted(second)
    order = [step.weights[page] for page in found[: len(first)]]
    assert order == sorted(order, reverse=True)


def test_attention_weighted_by_example():
    weights = {(0, 0, 4): 0.5, (0, 0, 9): 0.3, (0, 0, 20): 0.1, (0, 0, 30): 0.05, (1, 1, 7): 0.2}
    found = named(AttentionWeighted(top=2, depth=1).build(None).plan(Step(weights).view()).fetch)
    assert found == [(0, 0, 4), (0, 0, 9), (1, 1, 7), (0, 0, 5), (0, 0, 10), (0, 0, 3), (0, 0, 8)]


@given(
    st.sampled_from([Full(), SlidingWindow(window_tokens=70, sink_tokens=20), TopK()]),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_planners_name_the_coming_steps_in_order_and_keep_the_next(pattern, blocks, depth, knows_all):
    access = pattern.build(3, 16, 1)
    depth = depth if knows_all else 1
    config = Oracle(depth=depth) if knows_all else Scheduled()
    ask = access.reads if knows_all else access.known
    view = Step({}, blocks).view()
    expected = []
    for ahead in range(1, depth + 1):
        step = []
        for place, (key, context) in enumerate(view.sequences):
            reads = ask(key, context + ahead)
            step += [
                (group, place, block)
                for group, block in zip(reads.group.tolist(), reads.block.tolist(), strict=True)
                if block < blocks[place]  # a block that the next token opens is not there to be fetched
            ]
        expected.append(sorted(step))
    decision = config.build(access).plan(view)
    assert named(decision.fetch) == [page for step in expected for page in step]
    assert named(decision.keep) == expected[0]


@given(
    st.sampled_from([Full(), SlidingWindow(window_tokens=70, sink_tokens=20), TopK()]),
    st.integers(1, 30),
    st.integers(2, 200),
)
def test_later_steps_read_nothing_for_certain_that_the_next_does_not(pattern, context, ahead):
    """Why a schedule has no depth: of the pages that exist."""
    access = pattern.build(3, 16, 1)
    existing = -(-context // 16)
    later, following = (access.known(0, context + n) for n in (ahead, 1))
    pages = [set(zip(r.group.tolist(), r.block.tolist(), strict=True)) for r in (later, following)]
    assert {page for page in pages[0] if page[1] < existing} <= pages[1]
