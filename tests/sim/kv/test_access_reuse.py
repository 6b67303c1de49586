"""Statistics of recordings: against a count page by page, against what chance gives in closed form, and verdicts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kv.access.recording import Header, Recording
from sim.kv.access.reuse import PUBLISHED, Reuse, page_map


def chance_overlap(first: int, second: int, of: int) -> tuple[float, float]:
    """Mean and variance of the pages in both of two sets of these sizes, drawn from `of` pages on their own.

    The hypergeometric distribution: `first` marked pages among `of`, `second` draws without replacement.
    """
    mean = first * second / of
    variance = mean * (1 - first / of) * (of - second) / max(of - 1, 1)
    return mean, variance


def recording_of(sets, context: int, block: int, *, heads=1, random_weights=None) -> Recording:
    """Of `sets[step][layer]`, pages by weight."""
    rows = [
        (step, layer, page, weight)
        for step, layers in enumerate(sets)
        for layer, pages in enumerate(layers)
        for page, weight in sorted(pages.items())
    ]
    step, layer, page, weight = (np.array(column) for column in zip(*rows, strict=True))
    header = Header(block, context, len(sets[0]), heads=heads, random_weights=random_weights)
    return Recording(header, step, layer, page, weight.astype(np.float64))


@st.composite
def recordings(draw):
    """Returns sets of pages by step and layer, context, block size, heads."""
    block, heads = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2]))
    context, layers = draw(st.integers(1, 300)), heads * draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sets = []
    for step in range(draw(st.integers(1, 5))):
        pages = -(-(context + step) // block)
        sizes = rng.integers(1, pages + 1, layers)
        chosen = [rng.choice(pages, size, replace=False) for size in sizes]
        sets.append([{int(page): 0.9 / own.size for page in own} for own in chosen])
    return sets, context, block, heads


def overlap(pairs) -> tuple[float, float] | None:
    """Measured and by chance, of (now, before, pages of the context)."""
    reads = sum(len(now) for now, _, _ in pairs)
    if not reads:
        return None
    hits = sum(page in before for now, before, _ in pairs for page in now)
    return hits / reads, sum(len(now) * len(before) / of for now, before, of in pairs) / reads


@settings(deadline=None)
@given(recordings())
def test_every_figure_is_the_count_page_by_page(drawn):
    sets, context, block, heads = drawn
    reuse = Reuse(recording_of(sets, context, block, heads=heads))
    pages = [-(-(context + step) // block) for step in range(len(sets))]
    layers = len(sets[0])
    assert len(reuse.layers) == layers
    for number, found in enumerate(reuse.layers):
        own = [step[number] for step in sets]
        assert found.pages == pytest.approx(np.mean([len(one) for one in own]))
        assert found.share_of_pages == pytest.approx(
            np.mean([len(o) / n for o, n in zip(own, pages, strict=True)])
        )
        assert found.mass == pytest.approx(0.9)
        steps = overlap([(own[t], own[t - 1], pages[t]) for t in range(1, len(sets))])
        assert_share(found.step, steps)
        before = None
        if number >= heads:
            before = overlap([(s[number], s[number - heads], n) for s, n in zip(sets, pages, strict=True)])
        assert_share(found.layer, before)
        back = [(n - 1 - page) * block for one, n in zip(own, pages, strict=True) for page in one]
        weight = [w for one in own for w in one.values()]
        there = [[(n - 1 - page) * block for page in range(n)] for n in pages]
        for share, close in ((found.near, lambda d: d < 32), (found.far, lambda d: d >= 128)):
            chance = sum(
                len(one) * sum(map(close, all_back)) / len(all_back)
                for one, all_back in zip(own, there, strict=True)
            )
            assert_share(share, (sum(map(close, back)) / len(back), chance / len(back)))
        near = sum(w for d, w in zip(back, [w for one in own for _, w in one.items()], strict=True) if d < 32)
        assert found.near_mass == pytest.approx(near / sum(weight))
        assert found.distance_pages == stack_distances(own)
    every = [(s[i], s[i - heads], n) for s, n in zip(sets, pages, strict=True) for i in range(heads, layers)]
    assert_share(reuse.cross_layer.average, overlap(every))


def assert_share(share, expected) -> None:
    if expected is None:
        assert (share.measured, share.chance) == (None, None)
    else:
        assert (share.measured, share.chance) == pytest.approx(expected)


def stack_distances(own) -> tuple[float, float] | None:
    """Different pages since the last read of the page, page by page in order."""
    stream = [page for one in own for page in sorted(one)]
    found = []
    for place, page in enumerate(stream):
        if page in stream[:place]:
            last = place - 1 - stream[:place][::-1].index(page)
            found.append(len(set(stream[last + 1 : place])))
    return tuple(np.quantile(found, [0.5, 0.9])) if found else None


@pytest.mark.parametrize(("first", "second", "of"), [(1, 1, 1), (2, 3, 5), (4, 2, 6), (3, 3, 3), (0, 2, 4)])
def test_the_overlap_of_chance_is_that_of_all_pairs_of_sets(first, second, of):
    overlaps = [
        len(set(a) & set(b)) for a in combinations(range(of), first) for b in combinations(range(of), second)
    ]
    assert chance_overlap(first, second, of) == pytest.approx((np.mean(overlaps), np.var(overlaps)))


@pytest.mark.parametrize("chosen", [3, 20, 37])
def test_pages_drawn_at_random_are_reused_as_often_as_chance_says(chosen):
    rng, steps, layers, pages = np.random.default_rng(chosen), 50, 12, 40
    sets = [
        [dict.fromkeys(rng.choice(pages, chosen, replace=False).tolist(), 0.01) for _ in range(layers)]
        for _ in range(steps)
    ]
    reuse = Reuse(recording_of(sets, 64 * pages - steps, 64))
    mean, variance = chance_overlap(chosen, chosen, pages)
    for share, pairs in (
        (reuse.cross_layer.average, steps * (layers - 1)),
        (reuse.step, (steps - 1) * layers),
    ):
        assert share.chance == pytest.approx(mean / chosen)
        assert abs(share.measured - share.chance) < 4 * np.sqrt(variance / pairs) / chosen
        assert abs(share.beyond_chance) < 0.1


def test_layers_that_read_the_same_or_nothing_of_each_other():
    low, high = dict.fromkeys(range(5), 0.2), dict.fromkeys(range(5, 10), 0.2)
    same, other = (
        Reuse(recording_of([layers] * 3, 150, 16)) for layers in ([low] * 4, [low, high, low, high])
    )
    assert (same.cross_layer.average.measured, same.cross_layer.average.beyond_chance) == (1, 1)
    assert (other.cross_layer.average.measured, other.cross_layer.average.beyond_chance) == (0, -1)
    assert other.step.measured == 1
    everything = Reuse(recording_of([[dict.fromkeys(range(10), 0.1)] * 4], 150, 16)).cross_layer.average
    assert (everything.measured, everything.chance, everything.beyond_chance) == (1, 1, None)


def falling(first: float, middle: float, last: float) -> Recording:
    """Layers 1 to 9 share such parts of 100 pages with the one before, by thirds."""
    layers, rng = [rng_set(np.random.default_rng(0), 100)], np.random.default_rng(1)
    for share in np.repeat([first, middle, last], 3):
        kept = rng.permutation(sorted(layers[-1]))[: round(share * 100)]
        fresh = rng.permutation(sorted(set(range(1000)) - set(layers[-1])))[: 100 - kept.size]
        layers.append({int(page): 0.01 for page in (*kept, *fresh)})
    return recording_of([layers], 16000, 16, random_weights=False)


def rng_set(rng, size: int) -> dict[int, float]:
    return dict.fromkeys(rng.choice(1000, size, replace=False).tolist(), 0.01)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.92, 0.40, 0.50), "held"),
        ((0.86, 0.48, 0.45), "held"),
        ((0.92, 0.40, 0.95), "did not hold"),  # the average is off
        ((0.55, 0.55, 0.55), "did not hold"),
        ((0.40, 0.92, 0.50), "did not hold"),
    ],
)
def test_the_published_shares_are_judged_by_thirds_of_the_depth(shares, verdict):
    recording = falling(*shares)
    across = Reuse(recording).cross_layer
    assert (across.first.measured, across.middle.measured, across.last.measured) == pytest.approx(shares)
    assert across.average.measured == pytest.approx(np.mean(shares))
    found, why = across.verdict(recording.header)
    assert found == verdict
    assert "published" in why


def test_shares_that_chance_gives_are_no_reuse():
    """Layers that draw their pages each on its own, so many of them that every share is as published."""
    rng, pages = np.random.default_rng(0), 1000
    sizes = [920] * 5 + [320] * 4 + [700, 50, 700, 50]
    layers = [dict.fromkeys(rng.choice(pages, size, replace=False).tolist(), 1 / size) for size in sizes]
    recording = recording_of([layers], 16 * pages, 16, random_weights=False)
    across = Reuse(recording).cross_layer
    for name, published in PUBLISHED.items():
        assert abs(getattr(across, name).measured - published) < 0.1
    found, why = across.verdict(recording.header)
    assert found == "did not hold"
    assert "by chance" in why


def test_what_cannot_be_judged_is_not():
    trained = falling(*PUBLISHED.values())
    for random_weights, why in ((True, "random weights show chance"), (None, "nothing says whose")):
        header = Header(16, 16000, 10, random_weights=random_weights)
        found, words = Reuse(trained).cross_layer.verdict(header)
        assert found == "not judged"
        assert why in words
    few = recording_of(
        [[rng_set(np.random.default_rng(i), 5) for i in range(3)]], 16000, 16, random_weights=False
    )
    across = Reuse(few).cross_layer
    assert (across.first, across.middle, across.last) == (None, None, None)
    assert across.verdict(few.header) == ("not judged", "it takes four layers and more")


def test_the_map_of_pages_holds_all_mass():
    sets = [[{0: 0.5, 2: 0.25}, {1: 1.0}], [{0: 0.1}, {3: 0.5, 1: 0.5}]]
    found = page_map(recording_of(sets, 12, 4))
    np.testing.assert_allclose(found, [[0.3, 0, 0.125, 0], [0, 0.75, 0, 0.25]])
