"""One range a sequence: the laws of allocators, what the reservations are, and where ranges go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError, InvariantError
from sim.kv.allocators.contiguous import Contiguous, ContiguousAllocator
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.paged import Paged
from sim.kv.allocators.reserving import Reservation
from tests.sim.kv.allocator_laws import fragmentation, law_test


def allocator(reserve: str, placement: str = "first_fit", blocks: int = 40) -> ContiguousAllocator:
    return Contiguous(reserve=reserve, placement=placement).build(blocks, 4, 60, 0)


TestMax = law_test(lambda: allocator("max"))
TestExact = law_test(lambda: allocator("exact"))
TestBestFit = law_test(lambda: allocator("exact", "best_fit"))
TestPowerOfTwo = law_test(lambda: allocator("power_of_two", "best_fit"))
TestBuddy = law_test(lambda: allocator("exact", "buddy", 45))
TestPaged = law_test(lambda: Paged().build(40, 4, 60, 0))  # the laws are not of regions alone


def test_reservations():
    assert Reservation("max", 2048).tokens(100, 124) == 2048
    assert Reservation("exact", 2048).tokens(100, 124) == 124
    # 25 tokens of answer count as 32, the paper's own example; the last is never stored.
    assert Reservation("power_of_two", 2048).tokens(100, 124) == 131
    assert Reservation("power_of_two", 120).tokens(100, 119) == 120


@given(prompt=st.integers(1, 3000), answer=st.integers(1, 3000))
def test_a_power_of_two_is_enough_and_at_most_twice_the_answer(prompt, answer):
    final = prompt + answer - 1
    tokens = Reservation("power_of_two", 10**6).tokens(prompt, final)
    assert final <= tokens <= max(final, prompt + 2 * answer - 3)


def test_what_is_reserved_and_not_stored_is_internal_waste():
    memory = allocator("max", blocks=31)
    holding = memory.open(Claim(0, 9, 20))
    memory.extend(holding, 9)
    assert (memory.used_blocks, memory.stored_tokens) == (15, 9)
    assert memory.can_hold(Claim(1, 9, 20))
    memory.open(Claim(1, 9, 20))
    assert not memory.can_hold(Claim(2, 1, 1))  # one block of 31 is left
    assert memory.largest_free_blocks == 1


def test_ends_out_of_order_fragment_and_ends_of_all_do_not():
    memory = allocator("exact", blocks=10)
    held = [memory.open(Claim(i, 8, 8)) for i in range(5)]
    for at in (0, 2, 4):
        memory.release(held[at])
    assert fragmentation(memory) == pytest.approx((6 - 2) / 6)
    assert not memory.can_hold(Claim(9, 12, 12))  # though half as much again is free
    memory.release(held[1])
    assert memory.can_hold(Claim(9, 24, 24))
    memory.release(held[3])
    assert fragmentation(memory) == 0


def test_first_fit_and_best_fit_choose_differently():
    starts = {}
    for placement in ("first_fit", "best_fit"):
        memory = allocator("exact", placement, 20)
        held = [memory.open(Claim(i, tokens, tokens)) for i, tokens in enumerate((20, 4, 8, 4))]
        memory.release(held[0])
        memory.release(held[2])
        starts[placement] = memory.open(Claim(9, 8, 8)).start
    assert starts == {"first_fit": 0, "best_fit": 6}


def test_buddies_round_up_and_lie_at_multiples_of_their_length():
    memory = allocator("exact", "buddy", 40)
    first, second = (memory.open(Claim(i, 20, 20)) for i in range(2))  # 5 blocks each
    assert [(h.start, h.blocks) for h in (first, second)] == [(32, 8), (0, 8)]  # 40 = 32 + 8
    assert memory.used_blocks == 16


def test_a_pool_that_cannot_hold_the_longest_sequence_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"policies.allocator.reserve: max .* \(60 tokens\) .* 14 KV blocks"
    ):
        allocator("max", blocks=14)
    with pytest.raises(ConfigError, match="at most 32 tokens"):
        allocator("max", "buddy", blocks=15)
    assert not allocator("exact", blocks=14).ever_holds(1, 57)


def test_more_than_is_reserved_is_a_fault():
    memory = allocator("exact")
    holding = memory.open(Claim(0, 4, 4))
    with pytest.raises(InvariantError, match="5 tokens asked of a region of 1 blocks"):
        memory.extend(holding, 5)
    with pytest.raises(InvariantError, match="lost or held twice"):
        memory.check_integrity([])
