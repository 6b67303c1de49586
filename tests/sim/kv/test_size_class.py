"""Slots by size class: the laws of allocators, hits and misses, and shares that follow demand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sim.errors import InvariantError
from sim.kv.allocators.decision import Claim
from sim.kv.allocators.size_class import SizeClassAllocator, SizeClassConfig, SlotRegion
from tests.sim.kv.allocator_laws import law_test

MINUTE_NS = 60 * 10**9


def allocator(blocks: int = 60, **options: object) -> SizeClassAllocator:
    """Two classes of 4-token blocks: slots of 1, 2, 4 blocks in the first 30; of 4, 8, 16 in the others."""
    options = {"bounds_tokens": (4, 16, 64), "shares": (0.5, 0.5), **options}
    return SizeClassConfig(**options).build(blocks, 4, 60, 0)


def strict(**options: object) -> SizeClassAllocator:
    """Two windows of a minute in which less than 80% hits make a class starve."""
    return allocator(**{"window_s": 60.0, "windows": 2, "min_hit_rate": 0.8, **options})


TestTwoClasses = law_test(allocator, shares_move=True)
TestThree = law_test(
    lambda: allocator(100, bounds_tokens=(3, 9, 30, 70), shares=(0.2, 0.3, 0.5)), shares_move=True
)
TestSmallPool = law_test(lambda: allocator(10), longest=30, shares_move=True)
TestOneClass = law_test(lambda: allocator(40, bounds_tokens=(4, 64), shares=(1.0,)))
TestSharesThatMove = law_test(lambda: strict(window_s=100.0, windows=1, min_hit_rate=1.0), shares_move=True)


def opened(memory: SizeClassAllocator, *finals: int, first: int = 0) -> list[SlotRegion]:
    held = []
    for index, final in enumerate(finals, first):
        claim = Claim(index, 1, final)
        assert memory.can_hold(claim)
        held.append(memory.open(claim))
    return held


def test_the_defaults_are_the_shares_of_the_catalogue():
    config = SizeClassConfig()
    assert (config.bounds_tokens, config.shares) == ((64, 512, 4096, 16384), (0.35, 0.48, 0.17))
    memory = config.build(10_000, 16, 10**6, 0)
    assert [one.owned for one in memory.classes.classes] == [3500, 4800, 1700]
    assert [list(one.slots) for one in memory.classes.classes] == [
        [4, 8, 16, 32],
        [32, 64, 128, 256],
        [256, 512, 1024],
    ]


@pytest.mark.parametrize(
    ("final", "owner", "blocks"),
    [
        (1, 0, 1),
        (4, 0, 1),
        (5, 0, 2),
        (9, 0, 4),
        (15, 0, 4),
        (16, 1, 4),
        (17, 1, 8),
        (33, 1, 16),
        (64, 1, 16),
    ],
)
def test_a_sequence_takes_the_shortest_slot_of_its_class(final, owner, blocks):
    (held,) = opened(allocator(), final)
    assert (held.slot.owner, held.blocks) == (owner, blocks)


def test_a_full_class_borrows_from_the_next_which_is_a_miss():
    memory = allocator()
    held = opened(memory, *[13] * 7)  # 28 of 30 blocks
    (borrowed,) = opened(memory, 9, first=7)
    assert (borrowed.slot.owner, borrowed.blocks) == (1, 4)
    own = memory.classes.classes[0]
    assert (own.hits, own.misses) == (7, 1)
    opened(memory, 8, first=8)  # the last 2 blocks of its class
    assert (own.hits, own.misses) == (8, 1)
    memory.release(held[0])
    memory.release(borrowed)
    assert memory.classes.classes[1].free.free == 30


def test_who_had_to_wait_is_a_miss_however_often_it_was_asked():
    memory = allocator()
    held = opened(memory, 64)
    waiting = Claim(5, 1, 64)
    for _ in range(3):
        assert not memory.can_hold(waiting)
    memory.release(held[0])
    assert memory.can_hold(waiting)
    memory.open(waiting)
    large = memory.classes.classes[1]
    assert (large.hits, large.misses) == (1, 1)


def fill_windows(memory: SizeClassAllocator, windows: int) -> None:
    """Keep the small class full, and let one short sequence a window go elsewhere, in each of these windows."""
    opened(memory, *[13] * 7, 8)  # all 30 blocks
    for window in range(1, windows + 1):
        memory.now_ns = window * MINUTE_NS
        memory.release(opened(memory, 9, first=100 * window)[0])


def owned(memory: SizeClassAllocator) -> list[int]:
    return [one.owned for one in memory.classes.classes]


def test_two_low_windows_running_move_half_of_what_is_idle_elsewhere():
    memory = strict()
    fill_windows(memory, 2)
    assert owned(memory) == [30, 30]  # the first window was all hits, the second is low
    memory.now_ns = 3 * MINUTE_NS
    (last,) = opened(memory, 9, first=999)  # judged once it has its slot, 4 blocks of the large class
    # The large class keeps the 16 blocks of its longest slot; of the other 14, all idle, half go.
    assert owned(memory) == [37, 23]
    assert last.slot.owner == 1
    (more,) = opened(memory, 9, first=1000)
    assert more.slot.owner == 0


def test_a_window_without_requests_ends_a_row_of_low_ones():
    memory = strict()
    fill_windows(memory, 2)
    memory.now_ns = 4 * MINUTE_NS  # nobody came in the fourth minute, but two low ones had ended before it
    opened(memory, 9, first=999)
    assert owned(memory) == [37, 23]
    memory = strict(windows=3)
    fill_windows(memory, 2)
    for window in (5, 6):
        memory.now_ns = window * MINUTE_NS
        opened(memory, 9, first=100 * window)
    assert owned(memory) == [30, 30]


def test_good_windows_move_nothing():
    memory = strict()
    for window in range(6):
        memory.now_ns = window * MINUTE_NS
        memory.release(opened(memory, 9, first=window)[0])
    assert (owned(memory), memory.classes.moved) == ([30, 30], 0)


def test_what_could_ever_run_still_can_after_any_number_of_moves():
    memory = strict(windows=1, min_hit_rate=1.0)
    held = opened(memory, *[13] * 7, 8)
    window = 0
    while memory.can_hold(claim := Claim(100 + window, 1, 3)):
        window += 1
        memory.now_ns = window * MINUTE_NS
        held.append(memory.open(claim))
    assert memory.classes.moved > 7  # more than once
    assert owned(memory)[1] >= 16
    for holding in held:
        memory.release(holding)
    assert memory.can_hold(Claim(10**6, 1, 64))


def test_what_no_slot_holds_is_refused():
    assert not allocator().ever_holds(1, 65)
    assert allocator(20).ever_holds(1, 32)  # a slot of 8 blocks in a class of 10
    assert not allocator(20).ever_holds(1, 33)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds_tokens": (64, 64)}, "does not go upwards"),
        ({"bounds_tokens": (64, 128)}, "2 bounds_tokens make 1 classes, not 3"),
        ({"shares": (0.5, 0.4, 0.2)}, "must sum to 1, not 1.1"),
        ({"bounds_tokens": (64,)}, "at least 2"),
        ({"windows": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_classes_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        SizeClassConfig(**options)


def test_a_slot_of_the_wrong_class_is_noticed():
    memory = allocator()
    held = opened(memory, 9, 17)
    held[0].slot = held[0].slot._replace(owner=1)
    with pytest.raises(InvariantError, match="class 0 owns 30"):
        memory.check_integrity(held)
