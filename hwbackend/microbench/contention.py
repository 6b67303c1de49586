"""A copy over the link while a memory-bound kernel runs, and the kernel while such copies run.

The times of the two together, against each alone (`transfer`, `device_memory`), say how they share what they share:
DRAM on a CPU, HBM and its ports on a GPU. The simulator's links share max-min fairly; this is the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from hwbackend.device import Call, Device, Stream
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, filled, number, too_large
from hwbackend.microbench.transfer import on, one_way

_OUTLASTS: Final = 3.0  # what runs beside takes so many times as long as what is measured
_LEAST_BESIDE_S: Final = 2e-3
_MOST_BESIDE: Final = 20_000


class Contention:
    """`measured` is copy or kernel: the other one runs beside it. The kernel copies `num_bytes` on the device."""

    name = "contention"
    axes = ("direction", "num_bytes", "measured")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(device, 4 * number(axes, "num_bytes"))

    def work(self, axes: Axes) -> Work:
        return Work(num_bytes=number(axes, "num_bytes") * (1.0 if axes["measured"] == "copy" else 2.0))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        size = number(axes, "num_bytes")
        copy = one_way(device, str(axes["direction"]), size, pinned=True)
        source, target = filled(device, size // 4), filled(device, size // 4)

        def kernel(stream: Stream) -> Callable[[], None]:
            return lambda: device.copy(target, source, stream)

        side = device.stream()
        measured, beside = (
            (on(device.main, copy), kernel(side))
            if axes["measured"] == "copy"
            else (kernel(device.main), on(side, copy))
        )
        alone = on(device.main, copy) if axes["measured"] == "kernel" else kernel(device.main)
        needed = max(_LEAST_BESIDE_S, _OUTLASTS * _once_s(device, measured))
        count = min(_MOST_BESIDE, math.ceil(needed / _once_s(device, alone)))

        def before() -> None:
            for _ in range(count):
                beside()

        return Prepared((measured,), graph=False, before=before, after=side.synchronize, close=side.close)


def _once_s(device: Device, call: Call) -> float:
    """Seconds of one call, the second of two."""
    call()
    start = device.main.record()
    call()
    end = device.main.record()
    end.synchronize()
    return max(device.elapsed_s(start, end), 1e-7)
