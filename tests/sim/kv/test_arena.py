"""Arenas: the laws of allocators, and memory that comes back with the batch."""

from __future__ import annotations

import pytest

from sim.errors import ConfigError, InvariantError
from sim.kv.allocators.arena import Arena, ArenaAllocator
from sim.kv.allocators.decision import Claim
from tests.sim.kv.allocator_laws import fragmentation, law_test


def allocator(blocks: int = 40, **options: object) -> ArenaAllocator:
    options = {"reserve": "exact", "alignment_tokens": 8, **options}
    return Arena(**options).build(blocks, 4, 60, 0)


TestExact = law_test(allocator)
TestMax = law_test(lambda: allocator(45, reserve="max", alignment_tokens=12))
TestBestFit = law_test(lambda: allocator(47, placement="best_fit", reserve="power_of_two"))


def opened(memory: ArenaAllocator, *tokens: int) -> list:
    return [memory.open(Claim(i, n, n)) for i, n in enumerate(tokens)]


def test_a_batch_lies_in_a_row_and_aligned():
    memory = allocator()
    assert [(h.start, h.blocks) for h in opened(memory, 5, 8, 9, 1)] == [(0, 2), (2, 2), (4, 4), (8, 2)]


def test_memory_comes_back_with_the_last_of_the_batch():
    memory = allocator()
    first = opened(memory, 8, 40)
    memory.grow(1)
    second = opened(memory, 8)
    memory.release(first[1])
    assert memory.used_blocks == 14
    memory.release(first[0])
    assert memory.used_blocks == 2
    assert fragmentation(memory) == pytest.approx((38 - 26) / 38)
    memory.release(second[0])
    assert fragmentation(memory) == 0


def test_what_does_not_fit_behind_begins_another_piece():
    memory = allocator(20)
    early = opened(memory, 16)
    memory.grow(1)
    opened(memory, 16)  # keeps the first hole apart from the rest
    memory.grow(1)
    memory.release(early[0])
    batch = opened(memory, 8, 24)  # blocks 0 and 1, then 6 that are not free behind them
    assert [h.start for h in batch] == [0, 8]
    memory.release(batch[0])
    assert memory.used_blocks == 12
    memory.release(batch[1])
    assert memory.used_blocks == 4


def test_a_batch_that_has_ended_is_not_joined():
    memory = allocator()
    for holding in opened(memory, 8, 8):
        memory.release(holding)
    again = opened(memory, 8)
    memory.check_integrity(again)
    assert (again[0].start, memory.used_blocks) == (0, 2)


def test_alignment_counts_in_whole_blocks_and_must_leave_room():
    memory = allocator(alignment_tokens=9)  # 3 blocks of 4
    assert [h.start for h in opened(memory, 1, 1)] == [0, 3]
    assert not allocator(14, alignment_tokens=60).ever_holds(1, 1)
    with pytest.raises(ConfigError, match="at most 48 tokens"):
        allocator(17, reserve="max", alignment_tokens=48)


def test_a_lost_sequence_is_noticed():
    memory = allocator()
    held = opened(memory, 8, 8)
    with pytest.raises(InvariantError, match="does not lie in its arena"):
        memory.check_integrity(held[:1])
