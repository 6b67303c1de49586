"""KV that shrinks with age: many steps at once are the same as one by one, and every granule is accounted for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.paged import PagedAllocator
from sim.kv.allocators.shrinking_paged import ShrinkingHolding, ShrinkingPagedAllocator
from sim.kv.footprint import Footprint

HALF = Fraction(1, 2)
footprints = st.builds(
    Footprint.of,
    st.integers(1, 6),
    st.integers(0, 20),
    st.sampled_from([Fraction(0), Fraction(3, 5), HALF, Fraction(1)]),
    st.sampled_from([HALF, Fraction(33, 64), Fraction(1)]),
)


def naive(footprint: Footprint, tokens: int) -> int:
    """Granules of a sequence that takes one token at a time, its oldest recent block ageing when it is one too many."""
    recent, aged = [], 0
    for _ in range(tokens):
        if not recent or recent[-1] == footprint.block_size:
            recent.append(0)
        recent[-1] += 1
        if len(recent) > footprint.recent_blocks:
            assert recent.pop(0) == footprint.block_size
            aged += 1
    kept_tokens = aged * footprint.block_size * footprint.kept
    older = -(-kept_tokens // footprint.block_size)
    return len(recent) * footprint.recent_granules + int(older) * footprint.older_granules


def claim(tokens: int) -> Claim:
    return Claim(0, tokens, tokens)


@given(footprint=footprints, tokens=st.lists(st.integers(0, 120), min_size=1, max_size=5))
def test_the_footprint_is_that_of_a_sequence_grown_token_by_token(footprint, tokens):
    expected = [naive(footprint, count) for count in tokens]
    assert [footprint.granules(count) for count in tokens] == expected
    assert footprint.total(np.array(tokens, dtype=np.int64)) == sum(expected)


@given(footprint=footprints, tokens=st.integers(0, 400))
def test_the_footprint_never_falls_and_holds_what_is_stored(footprint, tokens):
    assert footprint.granules(tokens) <= footprint.granules(tokens + 1)
    stored = footprint.stored(np.array([tokens], dtype=np.int64))
    room = footprint.granules(tokens) * footprint.block_size * footprint.kept.denominator
    assert 0 <= stored <= room
    assert footprint.stored(np.array([tokens, tokens], dtype=np.int64)) == 2 * stored


@given(footprint=footprints, recent=st.integers(1, 20))
def test_the_latest_tokens_always_lie_in_recent_blocks(footprint, recent):
    size = footprint.block_size
    own = Footprint.of(size, recent, HALF, HALF)
    for tokens in range(recent, recent + 2 * size):
        first = (tokens - recent) // size  # block of the oldest of the latest tokens
        assert -(-tokens // size) - first <= own.recent_blocks


@given(footprint=footprints, granules=st.integers(0, 500))
def test_the_longest_sequence_fits_and_a_longer_one_does_not(footprint, granules):
    longest = footprint.longest(granules)
    if longest is None:
        assert footprint.granules(10**9) <= granules
    else:
        assert footprint.granules(longest) <= granules < footprint.granules(longest + 1)


class ShrinkingMachine(RuleBasedStateMachine):
    """Against a model that holds, per sequence, just its number of tokens."""

    @initialize(footprint=footprints, blocks=st.integers(10, 60))
    def start(self, footprint, blocks):
        self.footprint = footprint
        self.blocks = blocks
        self.allocator = ShrinkingPagedAllocator(blocks, footprint.block_size, footprint)
        self.tokens: dict[ShrinkingHolding, int] = {}

    def granules(self, tokens: int) -> int:
        return naive(self.footprint, tokens)

    @property
    def free(self) -> int:
        pool = self.blocks * self.footprint.recent_granules
        return pool - sum(map(self.granules, self.tokens.values()))

    @property
    def growing(self) -> list[ShrinkingHolding]:
        return [h for h in self.tokens if h.growing_since >= 0]

    @property
    def resting(self) -> list[ShrinkingHolding]:
        return [h for h in self.tokens if h.growing_since < 0]

    def growth(self, steps: int) -> int:
        return sum(
            self.granules(self.tokens[h] + steps) - self.granules(self.tokens[h]) for h in self.growing
        )

    @rule(tokens=st.integers(1, 90))
    def admit(self, tokens):
        fits = self.granules(tokens) <= self.free
        assert self.allocator.can_hold(claim(tokens)) == fits
        holding = self.allocator.open(claim(tokens))
        assert self.allocator.extend(holding, tokens) == fits
        if fits:
            self.tokens[holding] = tokens

    @precondition(lambda self: self.resting)
    @rule(data=st.data(), more=st.integers(1, 9))
    def extend(self, data, more):
        holding = data.draw(st.sampled_from(self.resting))
        wanted = self.tokens[holding] + more
        need = self.granules(wanted) - self.granules(self.tokens[holding])
        assert self.allocator.has_room([(holding, wanted)]) == (need + self.growth(1) <= self.free)
        assert self.allocator.extend(holding, wanted) == (need <= self.free)
        if need <= self.free:
            self.tokens[holding] = wanted

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def start_growing(self, data):
        self.allocator.start_growing(data.draw(st.sampled_from(self.resting)))

    @precondition(lambda self: self.tokens)
    @rule(more=st.integers(1, 9))
    def promise_in_turn(self, more):
        self.allocator.start_room()
        left = self.free
        for holding, tokens in self.tokens.items():
            grows = holding.growing_since >= 0
            need = self.granules(tokens + (1 if grows else more)) - self.granules(tokens)
            assert self.allocator.promise(holding, None if grows else tokens + more) == (need <= left)
            if need <= left:
                left -= need

    @rule(steps=st.integers(1, 60))
    def grow(self, steps):
        limit = max(s for s in range(steps + 1) if self.growth(s) <= self.free)
        assert self.allocator.has_room(()) == (self.growth(1) <= self.free)
        assert self.allocator.growth_limit(steps) == limit
        if limit:
            growing = self.growing
            self.allocator.grow(limit)
            for h in growing:
                self.tokens[h] += limit

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data):
        holding = data.draw(st.sampled_from(list(self.tokens)))
        self.allocator.release(holding)
        del self.tokens[holding]

    @invariant()
    def accounts(self):
        unit = self.footprint.recent_granules
        assert self.allocator.free_blocks == self.free // unit
        assert self.allocator.used_blocks + self.allocator.free_blocks == self.blocks
        assert self.allocator.stored_tokens <= self.allocator.used_blocks * self.footprint.block_size
        assert all(self.allocator.held(h) == -(-self.granules(t) // unit) for h, t in self.tokens.items())
        self.allocator.check_integrity(self.tokens)


TestShrinkingMachine = ShrinkingMachine.TestCase
TestShrinkingMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(
    footprint=footprints,
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80),
    steps=st.integers(1, 200),
)
@settings(deadline=None)
def test_growing_at_once_is_growing_one_by_one(footprint, lengths, steps):
    def grown(parts: list[int]) -> tuple[int, int, int]:
        allocator = ShrinkingPagedAllocator(100_000, footprint.block_size, footprint)
        for tokens in lengths:
            holding = allocator.open(claim(tokens))
            assert allocator.extend(holding, tokens)
            allocator.start_growing(holding)
        for part in parts:
            allocator.grow(part)
        return allocator.free_blocks, allocator._free, allocator.stored_tokens

    assert grown([steps]) == grown([1] * steps)


@given(
    lengths=st.lists(st.integers(1, 60), max_size=8), steps=st.integers(1, 100), blocks=st.integers(1, 200)
)
def test_where_nothing_ages_it_is_paged(lengths, steps, blocks):
    allocators = (
        ShrinkingPagedAllocator(blocks, 4, Footprint.of(4, 10_000, HALF, HALF)),
        PagedAllocator(blocks, 4),
    )
    seen = []
    for allocator in allocators:
        held = []
        for tokens in lengths:
            if allocator.can_hold(claim(tokens)):
                holding = allocator.open(claim(tokens))
                allocator.extend(holding, tokens)
                allocator.start_growing(holding)
                held.append(holding)
        limit = allocator.growth_limit(steps)
        allocator.grow(limit) if limit else None
        seen.append(
            (limit, allocator.used_blocks, allocator.stored_tokens, [allocator.held(h) for h in held])
        )
    assert seen[0] == seen[1]


def test_granules_by_hand():
    """Blocks of 16; 100 tokens stay whole, so eight blocks can be recent; int8 with scales takes 33/64."""
    footprint = Footprint.of(16, 100, Fraction(1), Fraction(33, 64))
    assert (footprint.recent_blocks, footprint.granules(128), footprint.granules(129)) == (8, 512, 545)
    kept = Footprint.of(16, 0, Fraction(3, 5), Fraction(1))
    assert [kept.granules(16 * blocks) for blocks in (1, 2, 3, 6, 11)] == [1, 2, 3, 4, 7]
    window = Footprint.of(16, 32, Fraction(0), Fraction(1))
    assert [window.granules(tokens) for tokens in (16, 32, 48, 49, 10_000)] == [1, 2, 3, 3, 3]


def test_what_never_fits_and_what_always_will():
    allocator = ShrinkingPagedAllocator(10, 16, Footprint.of(16, 32, HALF, HALF))
    assert allocator.ever_holds(
        100, 16 * (3 + 2 * 14)
    )  # 7 blocks left hold 14 of 8 bits, and so 28 aged ones
    assert not allocator.ever_holds(100, 16 * (3 + 2 * 14) + 1)
    assert ShrinkingPagedAllocator(3, 16, Footprint.of(16, 32, Fraction(0), HALF)).ever_holds(1, 10**12)


def test_faults_are_noticed():
    allocator = ShrinkingPagedAllocator(2, 4, Footprint.of(4, 4, HALF, HALF))
    holding = allocator.open(claim(8))
    allocator.extend(holding, 8)
    with pytest.raises(InvariantError, match="0 granules held"):
        allocator.check_integrity([])
    with pytest.raises(InvariantError, match="no table of ids"):
        allocator.block_table(holding)
    allocator.start_growing(holding)
    with pytest.raises(InvariantError, match="beyond the pool"):
        allocator.grow(9)
    with pytest.raises(InvariantError, match="blocks of 4 tokens, not 8"):
        ShrinkingPagedAllocator(2, 8, Footprint.of(4, 4, HALF, HALF))
