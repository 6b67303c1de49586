"""Free address ranges: against a list that is searched from end to end, and a bitmap of addresses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.errors import InvariantError
from sim.kv.space.buddies import FreeBuddies
from sim.kv.space.regions import FreeRegions, check_cover

SIZE = 70


def free_runs_of(taken: set[int], size: int) -> list[tuple[int, int]]:
    """Maximal runs of addresses that nobody has taken."""
    runs: list[tuple[int, int]] = []
    for address in range(size):
        if address in taken:
            continue
        if runs and sum(runs[-1]) == address:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((address, 1))
    return runs


class RegionsMachine(RuleBasedStateMachine):
    """Against a set of taken addresses."""

    @initialize(placement=st.sampled_from(["first_fit", "best_fit"]))
    def start(self, placement):
        self.placement = placement
        self.regions = FreeRegions(SIZE, placement)
        self.held: list[tuple[int, int]] = []

    def runs(self) -> list[tuple[int, int]]:
        taken = {address for start, length in self.held for address in range(start, start + length)}
        return free_runs_of(taken, SIZE)

    @rule(length=st.integers(1, SIZE))
    def place(self, length):
        fitting = [(start, n) for start, n in self.runs() if n >= length]
        assert self.regions.fits(length) == bool(fitting)
        if not fitting:
            with pytest.raises(InvariantError, match="can be placed"):
                self.regions.place(length)
            return
        by = (
            min if self.placement == "first_fit" else lambda runs: min(runs, key=lambda run: (run[1], run[0]))
        )
        assert self.regions.place(length) == (by(fitting)[0], length)
        self.held.append((by(fitting)[0], length))

    @rule(start=st.integers(0, SIZE - 1), length=st.integers(1, 9))
    def take(self, start, length):
        inside = any(s <= start and start + length <= s + n for s, n in self.runs())
        assert self.regions.is_free(start, length) == inside
        if inside:
            self.regions.take(start, length)
            self.held.append((start, length))
        else:
            with pytest.raises(InvariantError, match="not free"):
                self.regions.take(start, length)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give(self, data):
        at = data.draw(st.integers(0, len(self.held) - 1))
        self.regions.give(*self.held.pop(at))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_a_part(self, data):
        at = data.draw(st.integers(0, len(self.held) - 1))
        start, length = self.held.pop(at)
        cut = data.draw(st.integers(0, length))
        self.regions.give(start, cut)
        if cut < length:
            self.held.append((start + cut, length - cut))

    @invariant()
    def agrees_with_the_bitmap(self):
        runs = self.runs()
        assert self.regions.free_runs() == runs
        assert self.regions.free == sum(length for _, length in runs)
        assert self.regions.largest == max((length for _, length in runs), default=0)
        for address in range(SIZE):
            assert self.regions.run_at(address) == dict(runs).get(address, 0)
            assert self.regions.run_before(address) == sum(n for s, n in runs if s + n == address)


TestRegionsMachine = RegionsMachine.TestCase
TestRegionsMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


class BuddiesMachine(RuleBasedStateMachine):
    """Against the definition: aligned powers of two, and no two buddies free that belong together."""

    @initialize(size=st.integers(1, 200))
    def start(self, size):
        self.buddies = FreeBuddies(size)
        self.first_runs = self.buddies.free_runs()
        self.size = size
        self.held: list[tuple[int, int]] = []

    @rule(length=st.integers(1, 210))
    def place(self, length):
        room = 1 << (length - 1).bit_length()
        free = [run for run in self.buddies.free_runs() if run[1] >= room]
        assert self.buddies.fits(length) == bool(free)
        assert self.buddies.ever_fits(length) == any(n >= room for _, n in self.first_runs)
        if free:
            run = self.buddies.place(length)
            shortest = min(n for _, n in free)  # nothing longer is split while something shorter will do
            assert run == (min(start for start, n in free if n == shortest), room)
            self.held.append(run)
        else:
            with pytest.raises(InvariantError, match="can be placed"):
                self.buddies.place(length)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give(self, data):
        self.buddies.give(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def covers_everything_once(self):
        free = self.buddies.free_runs()
        check_cover([*free, *self.held], self.size)
        assert self.buddies.free == sum(length for _, length in free)
        assert self.buddies.largest == max((length for _, length in free), default=0)
        roots = {length: start for start, length in self.first_runs}
        for start, length in free:
            assert start % length == 0
            assert roots.get(length) == start or (start ^ length, length) not in free
        if not self.held:
            assert free == self.first_runs


TestBuddiesMachine = BuddiesMachine.TestCase
TestBuddiesMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@given(st.integers(1, 5000))
def test_a_space_is_the_row_of_its_powers_of_two(size):
    assert [length for _, length in FreeBuddies(size).free_runs()] == [
        1 << order for order in reversed(range(13)) if size >> order & 1
    ]


def test_a_part_of_a_space_has_only_its_own_runs():
    regions = FreeRegions(20, runs=[(2, 3), (10, 5)])
    assert (regions.free, regions.largest, regions.free_runs()) == (8, 5, [(2, 3), (10, 5)])


def test_what_is_given_back_twice_is_noticed():
    buddies = FreeBuddies(8)
    start, length = buddies.place(3)
    buddies.give(start, length)
    buddies.place(8)
    buddies.give(0, 2)
    with pytest.raises(InvariantError, match="free already"):
        buddies.give(0, 2)
    with pytest.raises(InvariantError, match="outside"):
        FreeRegions(8).give(6, 3)


def test_gaps_and_overlaps_are_noticed():
    check_cover([(0, 3), (3, 2)], 5)
    for runs in ([(0, 3)], [(0, 3), (2, 3)], [(0, 2), (3, 2)], [(1, 4)]):
        with pytest.raises(InvariantError, match="lost or held twice"):
            check_cover(runs, 5)
