"""Regions that grow: the laws of allocators, when they move, and what that copies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.grow import Grow, GrowAllocator, GrowingRegion
from tests.sim.exactness import assert_scenario_exact
from tests.sim.kv.allocator_laws import fragmentation, law_test


def allocator(blocks: int = 40, step_tokens: int = 8, placement: str = "first_fit") -> GrowAllocator:
    return Grow(step_tokens=step_tokens, placement=placement).build(blocks, 4, 60, 4 * 100)


TestFirstFit = law_test(allocator)
TestBestFit = law_test(lambda: allocator(placement="best_fit"))
TestTight = law_test(lambda: allocator(16, 4))
TestOddStep = law_test(lambda: allocator(27, 9, "best_fit"))


def opened(memory: GrowAllocator, *tokens: int) -> list[GrowingRegion]:
    held = []
    for index, count in enumerate(tokens):
        held.append(memory.open(Claim(index, count, 10**6)))
        assert memory.extend(held[-1], count)
    return held


@given(
    blocks=st.integers(5, 60),
    step_tokens=st.integers(1, 30),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    steps=st.integers(1, 60),
    placement=st.sampled_from(["first_fit", "best_fit"]),
)
def test_many_steps_at_once_are_as_many_single_ones_moves_and_copies_included(
    blocks, step_tokens, lengths, steps, placement
):
    outcomes = []
    for taken in ([steps], [1] * steps):
        memory = allocator(blocks, step_tokens, placement)
        held = []
        for index, tokens in enumerate(lengths):
            claim = Claim(index, tokens, 10**6)
            if memory.can_hold(claim):
                held.append(memory.open(claim))
                memory.extend(held[-1], tokens)
                memory.start_growing(held[-1])
        try:
            for count in taken:
                memory.grow(count)
        except InvariantError:
            outcomes.append("short")
            continue
        memory.check_integrity(held)
        copied = [(t.owner, t.route, t.num_bytes, t.blocking) for t in memory.transfers]
        outcomes.append(([(h.start, h.blocks) for h in held], memory.moves, memory.moved_tokens, copied))
    assert outcomes[0] == outcomes[1]


def test_it_grows_in_place_while_the_space_behind_is_free():
    memory = allocator(20)
    (only,) = opened(memory, 7)
    memory.start_growing(only)
    assert memory.growth_limit(100) == 1  # 7 of 8 tokens
    memory.grow(1)
    assert (memory.growth_limit(100), memory.has_room(())) == (0, True)
    memory.grow(1)
    assert (only.start, only.blocks, memory.moves, memory.growth_limit(100)) == (0, 4, 0, 7)


def test_it_moves_where_the_space_behind_is_taken_and_the_copy_is_counted():
    memory = allocator(20)
    first, second = opened(memory, 8, 8)
    memory.start_growing(first)
    assert memory.has_room(())
    assert (memory.transfers, first.start) == ([], 0)  # asking leaves everything as it was
    memory.grow(1)
    assert (first.start, first.blocks, second.start) == (4, 4, 2)
    (copy,) = memory.transfers
    assert (copy.owner, copy.route, copy.num_bytes, copy.blocking) == ("copy", "copy", 8 * 100, True)
    assert (memory.moves, memory.moved_tokens) == (1, 8)
    assert fragmentation(memory) == pytest.approx(1 - 12 / 14)


def test_only_what_is_stored_is_copied():
    memory = allocator(20)
    first, _ = opened(memory, 5, 8)
    assert memory.extend(first, 9)
    assert [copy.num_bytes for copy in memory.transfers] == [5 * 100]


def test_it_slides_into_the_free_space_before_it_as_a_last_resort():
    memory = allocator(6)
    first, second = opened(memory, 8, 16)
    memory.start_growing(second)
    assert not memory.has_room(())
    memory.release(first)
    assert memory.has_room(())
    memory.grow(1)
    assert (second.start, second.blocks, memory.moved_tokens) == (0, 6, 16)


def test_short_of_room_it_says_so_and_changes_nothing():
    memory = allocator(4)
    first, second = opened(memory, 8, 8)
    memory.start_growing(first)
    assert not memory.has_room(())
    memory.start_room()
    assert not memory.promise(first, None)
    assert not memory.extend(second, 9)
    assert [(h.start, h.blocks, h.tokens) for h in (first, second)] == [(0, 2, 8), (2, 2, 8)]
    memory.release(second)
    assert memory.promise(first, None)
    memory.grow(1)
    assert (memory.stored_tokens, memory.used_blocks) == (9, 4)
    with pytest.raises(InvariantError, match="no room for 2 blocks more"):
        memory.grow(8)


def test_a_region_is_whole_steps_of_whole_blocks():
    memory = allocator(20, step_tokens=9)  # 3 blocks of 4
    assert [h.blocks for h in opened(memory, 1, 12, 13)] == [3, 3, 6]
    assert memory.ever_holds(1, 72)
    assert not memory.ever_holds(1, 73)  # 7 steps of 3 blocks


def test_a_region_that_nobody_watches_is_noticed():
    memory = allocator()
    (only,) = opened(memory, 8)
    memory.start_growing(only)
    only.full_step += 1
    with pytest.raises(InvariantError, match="region 1"):
        memory.check_integrity([only])


def test_copies_take_their_time_alike_with_and_without_fast_forward():
    raw = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100_sxm"},
        "engine": {"max_model_len": 2048, "num_gpu_blocks_override": 600},
        "policies": {"allocator": {"name": "grow", "step_tokens": 32}},
        "workload": {
            "input_tokens": {"uniform": [20, 700]},
            "output_tokens": {"uniform": [1, 300]},
            "request_rate": 40,
            "num_requests": 150,
        },
    }
    result = assert_scenario_exact(raw)
    assert result.summary["sim"]["links"]["hbm"]["by_owner"]["copy"]["bytes_total"] > 0
