"""A log of allocations: address, size and time of each, as a trace that the simulator's allocators replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np

from sim.kv.replay.allocation_trace import AllocationTrace
from workloads.errors import InputError


@dataclass
class AllocationLog:
    """Events in order of time; an address may be taken again once it is free."""

    started_ns: int = field(default_factory=perf_counter_ns)
    _events: list[tuple[int, bool, int]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _addresses: list[int] = field(default_factory=list)
    _in_use: dict[int, int] = field(default_factory=dict)

    def allocated(self, address: int, num_bytes: int) -> None:
        """Note that `num_bytes` were placed at `address`."""
        if num_bytes < 1:
            return  # no memory, no place
        self._in_use[address] = len(self._sizes)
        self._events.append((self._now_ns(), True, len(self._sizes)))
        self._sizes.append(num_bytes)
        self._addresses.append(address)

    def freed(self, address: int) -> None:
        """Note that what lay at `address` is free; what was there before the log began is left out."""
        item = self._in_use.pop(address, None)
        if item is not None:
            self._events.append((self._now_ns(), False, item))

    def __len__(self) -> int:
        return len(self._events)

    def trace(self) -> AllocationTrace:
        """Return the events so far; addresses are as the device gave them."""
        if not self._events:
            raise InputError("allocation log: nothing was allocated")
        times, allocs, items = (np.array(column) for column in zip(*self._events, strict=True))
        sizes = np.array(self._sizes, dtype=np.int64)
        return AllocationTrace(times, allocs, items, sizes, np.array(self._addresses, dtype=np.int64))

    def _now_ns(self) -> int:
        return perf_counter_ns() - self.started_ns
