"""Copy-on-write: against block tables spelled out, with a reference count for every block."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.forking_paged import ForkedHolding, ForkingPagedAllocator
from tests.sim.kv.allocator_laws import law_test

SIZE = 4
BLOCKS = 24

TestWithoutForks = law_test(lambda: ForkingPagedAllocator(40, 4, 1))


class Block:
    def __init__(self) -> None:
        self.holders = 1
        self.tokens = 0


class Table:
    """A sequence of the reference: its blocks, and how many tokens are in them."""

    def __init__(self, holding: ForkedHolding) -> None:
        self.holding = holding
        self.blocks: list[Block] = []
        self.tokens = 0
        self.growing = False


class ForkMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.allocator = ForkingPagedAllocator(BLOCKS, SIZE, 7)
        self.tables: list[Table] = []  # in the order in which they began to grow, then the others
        self.copies = 0
        self.ids: dict[Block, int] = {}

    def used(self) -> int:
        return len({block for table in self.tables for block in table.blocks})

    def needed(self, changes: list[tuple[Table, int]]) -> int:
        """Blocks that these writes take, one after the other."""
        holders = {block: block.holders for table in self.tables for block in table.blocks}
        need = 0
        for table, tokens in changes:
            if tokens > table.tokens and table.tokens % SIZE:
                last = table.blocks[-1]
                if holders[last] > 1:
                    holders[last] -= 1
                    need += 1
            need += -(-tokens // SIZE) - len(table.blocks)
        return need

    def write(self, table: Table, tokens: int) -> None:
        for _ in range(tokens - table.tokens):
            if table.tokens % SIZE == 0:
                table.blocks.append(Block())
            elif table.blocks[-1].holders > 1:
                old = table.blocks[-1]
                old.holders -= 1
                table.blocks[-1] = Block()
                table.blocks[-1].tokens = old.tokens
                self.copies += 1
            table.blocks[-1].tokens += 1
            table.tokens += 1

    def growing(self) -> list[Table]:
        return [table for table in self.tables if table.growing]

    @rule(tokens=st.integers(1, 20))
    def admit(self, tokens):
        claim = Claim(0, tokens, tokens)
        fits = -(-tokens // SIZE) + self.used() <= BLOCKS
        assert self.allocator.can_hold(claim) == fits
        if fits:
            table = Table(self.allocator.open(claim))
            assert self.allocator.extend(table.holding, tokens)
            self.tables.append(table)
            self.write(table, tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        table = data.draw(st.sampled_from(self.tables))
        before = self.allocator.used_blocks
        other = Table(self.allocator.fork(table.holding))
        assert self.allocator.used_blocks == before
        other.blocks, other.tokens = list(table.blocks), table.tokens
        for block in other.blocks:
            block.holders += 1
        self.tables.append(other)

    @precondition(lambda self: any(not table.growing for table in self.tables))
    @rule(data=st.data(), more=st.integers(0, 6))
    def extend(self, data, more):
        table = data.draw(st.sampled_from([table for table in self.tables if not table.growing]))
        fits = self.needed([(table, table.tokens + more)]) + self.used() <= BLOCKS
        assert self.allocator.extend(table.holding, table.tokens + more) == fits
        if fits:
            self.write(table, table.tokens + more)

    @precondition(lambda self: any(not table.growing for table in self.tables))
    @rule(data=st.data())
    def start_growing(self, data):
        table = data.draw(st.sampled_from([table for table in self.tables if not table.growing]))
        self.allocator.start_growing(table.holding)
        table.growing = True
        self.tables.remove(table)
        self.tables.insert(len(self.growing()), table)

    @rule()
    def step(self):
        changes = [(table, table.tokens + 1) for table in self.growing()]
        fits = self.needed(changes) + self.used() <= BLOCKS
        assert self.allocator.has_room(()) == fits
        if not fits:
            self.allocator.start_room()
            kept: list[tuple[Table, int]] = []
            for change in changes:
                # What a later one leaves is not known yet: the promise is for those up to here.
                possible = self.needed([*kept, change]) + self.used() <= BLOCKS
                assert self.allocator.promise(change[0].holding, None) == possible
                if not possible:
                    break
                kept.append(change)
            for table, _ in changes[len(kept) :]:
                self.give_back(table)
            changes = kept
        self.allocator.grow(1)
        for table, tokens in changes:
            self.write(table, tokens)

    @rule(steps=st.integers(1, 12))
    def window(self, steps):
        limit = self.allocator.growth_limit(steps)
        growing = self.growing()
        if limit:
            assert self.needed([(table, table.tokens + limit) for table in growing]) + self.used() <= BLOCKS
            self.allocator.grow(limit)
            for table in growing:
                self.write(table, table.tokens + limit)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        self.give_back(data.draw(st.sampled_from(self.tables)))

    def give_back(self, table: Table) -> None:
        self.tables.remove(table)
        self.allocator.release(table.holding)
        for block in table.blocks:
            block.holders -= 1

    @precondition(lambda self: self.tables)
    @rule()
    def ask_for_tables(self):
        """Ids tell the same blocks apart as the reference, and stay what they are."""
        live = {block for table in self.tables for block in table.blocks}
        self.ids = {block: known for block, known in self.ids.items() if block in live}
        for table in self.tables:
            told = self.allocator.block_table(table.holding)
            assert len(told) == len(table.blocks)
            for block, known in zip(table.blocks, told, strict=True):
                assert self.ids.setdefault(block, known) == known
        assert len(set(self.ids.values())) == len(self.ids) == len(live)

    @invariant()
    def accounts(self):
        allocator = self.allocator
        assert allocator.used_blocks == self.used()
        assert allocator.memory()[1] == allocator.stored_tokens
        blocks = {block for table in self.tables for block in table.blocks}
        assert allocator.stored_tokens == sum(block.tokens for block in blocks)
        assert allocator.copies == len(allocator.transfers) == self.copies
        allocator.check_integrity([table.holding for table in self.tables])


TestForkMachine = ForkMachine.TestCase
TestForkMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


def test_samples_of_one_prompt_share_it_and_copy_its_last_block_once_each_but_for_the_last():
    memory = ForkingPagedAllocator(100, 16, 1000)
    first = memory.open(Claim(0, 40, 60))
    memory.extend(first, 40)
    samples = [first, *(memory.fork(first) for _ in range(3))]
    assert (memory.used_blocks, memory.stored_tokens) == (3, 40)
    for holding in samples:
        memory.start_growing(holding)
    assert memory.has_room(())
    memory.grow(1)
    assert memory.used_blocks == 2 + 4
    assert memory.stored_tokens == 32 + 4 * 9
    tables = [memory.block_table(holding) for holding in samples]
    assert all(table[:2] == tables[0][:2] for table in tables)
    assert len({table[2] for table in tables}) == 4
    sources = [transfer.payload[0] for transfer in memory.transfers]
    assert sources == [tables[3][2]] * 3  # the last one writes in place
    assert [transfer.payload[1] for transfer in memory.transfers] == [table[2] for table in tables[:3]]
    assert [(t.owner, t.route, t.num_bytes, t.blocking) for t in memory.transfers] == 3 * [
        ("copy", "copy", 1000, True)
    ]


def test_a_prompt_of_whole_blocks_is_never_copied():
    memory = ForkingPagedAllocator(10, 16, 1000)
    first = memory.open(Claim(0, 32, 40))
    memory.extend(first, 32)
    other = memory.fork(first)
    for holding in (first, other):
        memory.start_growing(holding)
    memory.grow(1)
    assert (memory.used_blocks, memory.copies) == (4, 0)


def test_who_cannot_copy_is_short():
    memory = ForkingPagedAllocator(3, 16, 1000)
    first = memory.open(Claim(0, 40, 60))
    memory.extend(first, 40)
    other = memory.fork(first)
    memory.start_growing(first)
    assert not memory.has_room(())
    assert not memory.extend(other, 41)
    memory.release(other)
    assert memory.has_room(())


def test_a_wrong_count_of_holders_is_noticed():
    memory = ForkingPagedAllocator(5, 4, 1)
    first = memory.open(Claim(0, 6, 9))
    memory.extend(first, 6)
    other = memory.fork(first)
    with pytest.raises(InvariantError, match="2 holders of shared blocks instead of 1"):
        memory.check_integrity([first])
    memory.check_integrity([first, other])
