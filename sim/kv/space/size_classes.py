"""A space shared out among classes of lengths, each with slots of its own sizes; shares follow demand.

A class owns some of the addresses and cuts slots from them: its lower bound long, or twice that, four times, up to its
upper bound. Slots of its upper bound alone would waste seven eighths of themselves on the shortest of a class
[512, 4096); with powers of two it is at most half. A request takes the shortest slot of its class that holds it. Where
its class has none left, a larger one lends its own shortest that does: a miss.

Time is cut into windows. A class whose hit rate was too low in so many windows running starves, and gets free space
from the class that has most of it idle: half of that, so that the giver keeps as much as it gives. The part of a class
in which its longest slot lies at the start is never given away, so that whatever fits into the empty space at the
start fits whenever the space is empty again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.errors import InvariantError
from sim.kv.space.regions import FreeRegions, Run


class Slot(NamedTuple):
    """A range, and the class that it is cut from."""

    start: int
    length: int
    owner: int


@dataclass(frozen=True)
class Windows:
    """When a class starves: hit rate below `min_hit_rate` in `running` windows of `window_ns` one after the other."""

    window_ns: int
    min_hit_rate: float
    running: int


class SizeClass:
    """One class: slots of `slots` (ascending), cut from the addresses that it owns."""

    def __init__(self, size: int, owned: Run, slots: Sequence[int]) -> None:
        self.slots = slots
        self.owned = owned[1]
        self.home = owned[0], min(owned[1], slots[-1])
        self.free = FreeRegions(size, runs=[owned])
        self.hits = 0  # in the window that runs
        self.misses = 0
        self.low_windows = 0

    def slot_for(self, length: int) -> int | None:
        """The shortest of its slots that holds `length`; None where none does."""
        return next((slot for slot in self.slots if slot >= length), None)

    def idle_runs(self) -> list[Run]:
        """Free runs that it may give away, longest first."""
        first, end = self.home[0], sum(self.home)
        runs = []
        for start, length in self.free.free_runs():
            stop = start + length
            runs += [(start, min(stop, first) - start), (max(start, end), stop - max(start, end))]
        return sorted((run for run in runs if run[1] > 0), key=lambda run: (-run[1], run[0]))


class SizeClasses:
    """Classes in ascending order: how many addresses each begins with, and the lengths of its slots."""

    def __init__(self, owned: Sequence[int], slots: Sequence[Sequence[int]], windows: Windows) -> None:
        self.size = sum(owned)
        self.classes = [
            SizeClass(self.size, (sum(owned[:k]), count), slots[k]) for k, count in enumerate(owned)
        ]
        self._windows = windows
        self._window = 0  # the one that runs; its number is its start over its length
        self.moved = 0  # addresses given away so far

    @property
    def free(self) -> int:
        return sum(one.free.free for one in self.classes)

    @property
    def largest(self) -> int:
        return max(one.free.largest for one in self.classes)

    def free_runs(self) -> list[Run]:
        """Free runs of all classes; those of different classes may touch."""
        return sorted(run for one in self.classes for run in one.free.free_runs())

    def ever_fits(self, length: int, first: int) -> bool:
        """Whether class `first`, or a larger one, has a slot for it when all is free."""
        slots = ((one.slot_for(length), one.home[1]) for one in self.classes[first:])
        return any(slot is not None and slot <= room for slot, room in slots)

    def find(self, length: int, first: int) -> tuple[int, int] | None:
        """The class that would give a slot now, and the slot's length: class `first`, or the next that has one."""
        for owner in range(first, len(self.classes)):
            slot = self.classes[owner].slot_for(length)
            if slot is not None and self.classes[owner].free.fits(slot):
                return owner, slot
        return None

    def take(self, length: int, first: int, *, waited: bool, now_ns: int) -> Slot:
        """Give out a slot for a request of class `first`; one that `waited` for it is a miss."""
        found = self.find(length, first)
        if found is None:
            raise InvariantError(f"no slot for {length} in class {first} or above")
        owner, slot = found
        start, _ = self.classes[owner].free.place(slot)
        self._pass_windows(now_ns)
        if owner == first and not waited:
            self.classes[first].hits += 1
        else:
            self.classes[first].misses += 1
        return Slot(start, slot, owner)

    def give(self, slot: Slot) -> None:
        self.classes[slot.owner].free.give(slot.start, slot.length)

    def check(self, held: Sequence[Slot]) -> None:
        """Raise InvariantError unless each class owns its free space and its slots, these being all that are held."""
        for index, one in enumerate(self.classes):
            slots = sum(slot.length for slot in held if slot.owner == index)
            if one.free.free + slots != one.owned:
                raise InvariantError(
                    f"class {index} owns {one.owned}, and has {one.free.free} free + {slots} in slots"
                )

    def _pass_windows(self, now_ns: int) -> None:
        """Judge the window that has ended, if one has. One without a request ends a row of low ones."""
        window = now_ns // self._windows.window_ns
        if window == self._window:
            return
        for one in self.classes:
            asked = one.hits + one.misses
            low = asked > 0 and one.hits < self._windows.min_hit_rate * asked
            one.low_windows = one.low_windows + 1 if low else 0
            one.hits = one.misses = 0
        for index, one in enumerate(self.classes):
            if one.low_windows >= self._windows.running and self._feed(index):
                one.low_windows = 0
        if window > self._window + 1:
            for one in self.classes:
                one.low_windows = 0
        self._window = window

    def _feed(self, index: int) -> bool:
        """Give a class half of the idle space of the class that has most of it; whether there was any."""
        starving = self.classes[index]
        unit = starving.slots[0]
        others = [one for one in self.classes if one is not starving]
        if not others:
            return False
        giver = max(others, key=lambda one: sum(length for _, length in one.idle_runs()))
        runs = giver.idle_runs()
        left = sum(length for _, length in runs) // 2
        given = 0
        for start, length in runs:
            part = min(length, left - given) // unit * unit
            if part:
                giver.free.take(start, part)
                starving.free.give(start, part)
                given += part
        giver.owned -= given
        starving.owned += given
        self.moved += given
        return given > 0
