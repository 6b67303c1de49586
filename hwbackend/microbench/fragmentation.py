"""A probe of the device's allocator: random sizes taken and given back, logged as an allocation trace.

Lengths of requests are geometric and each holds its memory for a while, as contiguous KV would be: the trace says
where the device put what, and any allocator of the simulator replays it (`servetwin allocations`) [K5]. On a GPU the
driver is asked beyond the trace how large a piece it still gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwbackend.device import Array, Device
from sim.kv.replay.allocation_trace import AllocationTrace


@dataclass(frozen=True, slots=True)
class Probe:
    """The trace, and what the driver has left at its end; None where there is no saying."""

    trace: AllocationTrace
    free_bytes: int
    largest_bytes: int | None
    reason: str = ""

    @property
    def fragmentation(self) -> float | None:
        """(free - largest free) / free [K5]."""
        return None if self.largest_bytes is None else 1.0 - self.largest_bytes / max(self.free_bytes, 1)


def probe(
    device: Device, *, allocations: int = 400, mean_bytes: int = 1 << 20, held: int = 48, seed: int = 0
) -> Probe:
    """Take `allocations` pieces, of which `held` are held at once on average; give half of the rest back."""
    random = np.random.default_rng(seed)
    sizes = np.maximum(512, random.geometric(1 / mean_bytes, allocations))
    pieces: list[Array] = []
    with device.allocations() as log:
        for size in sizes.tolist():
            while len(pieces) > held * random.uniform(0.5, 1.5):
                pieces.pop(int(random.integers(len(pieces))))
            pieces.append(device.empty(int(size), "uint8"))
        for _ in range(len(pieces) // 2):
            pieces.pop(int(random.integers(len(pieces))))
        trace = log.trace()
        free = device.memory().free_bytes
        if device.kind == "cpu":
            why = "the operating system gives pages from anywhere, so no piece is too large while memory is free"
            return Probe(trace, free, None, why)
        return Probe(trace, free, _largest(device, free))


def _largest(device: Device, free: int, resolution: int = 2 << 20) -> int:
    """The largest piece that the driver gives now, by bisection."""
    runtime = device.xp.cuda.runtime
    low, high = 0, free
    while high - low > resolution:
        middle = (low + high) // 2
        try:
            runtime.free(runtime.malloc(middle))
        except runtime.CUDARuntimeError:
            high = middle
        else:
            low = middle
    return low
