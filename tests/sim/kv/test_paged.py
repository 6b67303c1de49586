"""The paged allocator: many steps at once are the same as one by one, and every block is accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.paged import PagedAllocator, PagedHolding


class PagedMachine(RuleBasedStateMachine):
    """Against a model that holds, per sequence, just its number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PagedAllocator(40, 4)
        self.tokens: dict[PagedHolding, int] = {}

    def blocks(self, tokens: int) -> int:
        return -(-tokens // 4)

    @property
    def free(self) -> int:
        return 40 - sum(map(self.blocks, self.tokens.values()))

    @rule(tokens=st.integers(1, 60))
    def admit(self, tokens):
        claim = Claim(0, tokens, tokens)
        holding = self.allocator.open(claim)
        fits = self.blocks(tokens) <= self.free
        assert self.allocator.can_hold(claim) == fits
        assert self.allocator.extend(holding, tokens) == fits
        if fits:
            self.tokens[holding] = tokens

    @precondition(lambda self: any(h.growing_since < 0 for h in self.tokens))
    @rule(data=st.data(), more=st.integers(1, 9))
    def extend(self, data, more):
        holding = data.draw(st.sampled_from([h for h in self.tokens if h.growing_since < 0]))
        wanted = self.tokens[holding] + more
        missing = self.blocks(wanted) - self.blocks(self.tokens[holding])
        due = sum(h.growing_since >= 0 and self.tokens[h] % 4 == 0 for h in self.tokens)
        assert self.allocator.has_room([(holding, wanted)]) == (due + missing <= self.free)
        self.allocator.start_room()
        assert self.allocator.promise(holding, wanted) == (missing <= self.free)
        fits = missing <= self.free
        assert self.allocator.extend(holding, wanted) == fits
        if fits:
            self.tokens[holding] = wanted

    @precondition(lambda self: any(h.growing_since < 0 for h in self.tokens))
    @rule(data=st.data())
    def start_growing(self, data):
        self.allocator.start_growing(
            data.draw(st.sampled_from([h for h in self.tokens if h.growing_since < 0]))
        )

    @rule(steps=st.integers(1, 23))
    def grow(self, steps):
        growing = [h for h in self.tokens if h.growing_since >= 0]
        need = [
            sum(self.blocks(self.tokens[h] + s) - self.blocks(self.tokens[h]) for h in growing)
            for s in range(steps + 1)
        ]
        limit = max(s for s in range(steps + 1) if need[s] <= self.free)
        assert self.allocator.has_room(()) == (need[1] <= self.free)
        assert self.allocator.growth_limit(steps) == limit
        self.allocator.start_room()
        promised = 0
        for h in growing:
            promised += self.tokens[h] % 4 == 0
            assert self.allocator.promise(h, None) == (promised <= self.free)
            promised = min(promised, self.free)
        if limit:
            self.allocator.grow(limit)
            for h in growing:
                self.tokens[h] += limit

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data):
        holding = data.draw(st.sampled_from(list(self.tokens)))
        self.allocator.release(holding)
        del self.tokens[holding]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def ask_for_a_table(self, data):
        holding = data.draw(st.sampled_from(list(self.tokens)))
        table = self.allocator.block_table(holding)
        assert len(table) == self.blocks(self.tokens[holding])
        assert self.allocator.block_table(holding) == table

    @invariant()
    def accounts(self):
        assert self.allocator.free_blocks == self.allocator.largest_free_blocks == self.free
        assert self.allocator.stored_tokens == sum(self.tokens.values())
        self.allocator.check_integrity(self.tokens)


TestPagedMachine = PagedMachine.TestCase
TestPagedMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(block_size=st.integers(1, 17), tokens=st.integers(1, 50), steps=st.integers(1, 100))
def test_growing_takes_the_blocks_that_the_tokens_fill(block_size, tokens, steps):
    allocator = PagedAllocator(1000, block_size)
    holding = PagedHolding()
    allocator.extend(holding, tokens)
    allocator.start_growing(holding)
    allocator.grow(steps)
    assert allocator.used_blocks == allocator.held(holding) == -(-(tokens + steps) // block_size)


def test_a_lost_block_is_noticed():
    allocator = PagedAllocator(5, 4)
    holding = PagedHolding()
    allocator.extend(holding, 9)
    with pytest.raises(InvariantError, match="0 blocks held"):
        allocator.check_integrity([])
    allocator.block_table(holding)
    holding.runs = [(0, 3), (1, 1)]
    with pytest.raises(InvariantError, match="lost or held twice"):
        allocator.check_integrity([holding])


def test_growing_beyond_the_pool_is_a_fault():
    allocator = PagedAllocator(1, 4)
    holding = PagedHolding()
    allocator.extend(holding, 4)
    allocator.start_growing(holding)
    with pytest.raises(InvariantError, match="beyond the pool"):
        allocator.grow(1)
