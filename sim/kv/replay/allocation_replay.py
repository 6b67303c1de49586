"""An allocation trace through an allocator: how full it is, what it wastes, how it fragments, and what it refuses.

A token of the allocator is a byte of the trace, and its block the least that it hands out. The final size of an
allocation is known from the start, as it is to any allocator of memory; a step of the allocator ends whenever time
goes on, so that an arena holds what was asked for at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import ConfigError
from sim.kv.allocators.decision import Allocator, AllocatorConfig, Claim
from sim.kv.allocators.region import Region
from sim.kv.allocators.reserving import ReservingAllocator
from sim.kv.replay.allocation_trace import AllocationTrace, Int64
from sim.kv.space.regions import FreeRegions

Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AllocationSeries:
    """The memory after each event of a trace, in bytes.

    time_ns         of the event
    used            handed out
    stored          of that, what was asked for; the rest is internal waste
    largest_free    the largest request that could be placed
    failures        requests that found no place so far; freeing them later does nothing
    """

    capacity_bytes: int
    time_ns: Int64
    used: Int64
    stored: Int64
    largest_free: Int64
    failures: Int64

    @property
    def fragmentation(self) -> Float64:
        """External: (free - largest free) / free; 0 where nothing is free."""
        free = self.capacity_bytes - self.used
        return np.divide(free - self.largest_free, free, out=np.zeros(free.size), where=free > 0)

    @property
    def waste(self) -> Float64:
        """Internal: share of what is handed out that nobody asked for; 0 where nothing is."""
        return np.divide(
            self.used - self.stored, self.used, out=np.zeros(self.used.size), where=self.used > 0
        )

    def mean(self, values: Float64) -> float:
        """Over time, each value holding until the next event; over events, where all are at one time."""
        lasts = np.diff(self.time_ns)
        return float(values[:-1] @ lasts / lasts.sum()) if lasts.sum() else float(values.mean())

    def summary(self) -> dict[str, Any]:
        """The figures that the command prints."""
        return {
            "peak_used_bytes": int(self.used.max()),
            "peak_stored_bytes": int(self.stored.max()),
            "waste_mean": self.mean(self.waste),
            "waste_max": float(self.waste.max()),
            "fragmentation_mean": self.mean(self.fragmentation),
            "fragmentation_max": float(self.fragmentation.max()),
            "failed": int(self.failures[-1]),
        }

    def columns(self) -> dict[str, list[float]]:
        """The series itself, for files."""
        return {
            "time_s": (self.time_ns / 1e9).tolist(),
            "used_bytes": self.used.tolist(),
            "stored_bytes": self.stored.tolist(),
            "largest_free_bytes": self.largest_free.tolist(),
            "failed": self.failures.tolist(),
        }


def replay(trace: AllocationTrace, allocator: Allocator) -> AllocationSeries:
    """Ask the allocator for everything that the trace asks for."""
    size = allocator.block_size
    held: dict[int, Any] = {}
    failures = 0
    rows = np.empty((len(trace), 4), dtype=np.int64)
    for at, (time_ns, is_alloc, item) in enumerate(trace):
        if time_ns != allocator.now_ns:
            allocator.grow(1)
            allocator.now_ns = time_ns
        if is_alloc:
            tokens = int(trace.num_bytes[item])
            claim = Claim(item, tokens, tokens)
            if allocator.ever_holds(tokens, tokens) and allocator.can_hold(claim):
                held[item] = allocator.open(claim)
                allocator.extend(held[item], tokens)
            else:
                failures += 1
        elif item in held:
            allocator.release(held.pop(item))
        rows[at] = (
            allocator.used_blocks * size,
            allocator.stored_tokens,
            allocator.largest_free_blocks * size,
            failures,
        )
    return AllocationSeries(allocator.num_blocks * size, trace.time_ns, *rows.T.copy())


def build_for(
    config: AllocatorConfig, trace: AllocationTrace, capacity_bytes: int, granule_bytes: int
) -> Allocator:
    """Make the allocator that a scenario would name so, over `capacity_bytes` of memory in units of `granule_bytes`."""
    if capacity_bytes < granule_bytes:
        raise ConfigError(f"--capacity {capacity_bytes}: less than one unit of {granule_bytes} bytes")
    longest = int(trace.num_bytes.max())
    return config.build(capacity_bytes // granule_bytes, granule_bytes, longest, granule_bytes)


def as_recorded(trace: AllocationTrace, capacity_bytes: int | None = None) -> Allocator:
    """The program's own allocator, as far as the trace tells: everything goes where it went.

    The memory begins at the lowest address of the trace, and without a capacity ends at the highest.
    """
    if trace.address is None:
        raise ConfigError("--allocator recorded: the trace names no addresses")
    start = int(trace.address.min())
    end = int((trace.address + trace.num_bytes).max())
    return _RecordedAllocator(capacity_bytes or end - start, (trace.address - start).tolist())


class _RecordedAllocator(ReservingAllocator):
    """Places each request at a given address; where that is taken or beyond the memory, the request fails."""

    def __init__(self, num_bytes: int, addresses: list[int]) -> None:
        self._free = FreeRegions(num_bytes)
        super().__init__(num_bytes, 1, self._free)
        self._addresses = addresses

    def can_hold(self, claim: Claim) -> bool:
        return self._free.is_free(self._addresses[claim.index], claim.final_tokens)

    def open(self, claim: Claim) -> Region:
        start = self._addresses[claim.index]
        self._free.take(start, claim.final_tokens)
        return Region(start, claim.final_tokens)

    def _give_back(self, holding: Region) -> None:
        self._free.give(holding.start, holding.blocks)
