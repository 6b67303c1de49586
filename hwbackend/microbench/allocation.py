"""What it costs to take memory and give it back: from the driver each time, or from the pool in front of it."""

from __future__ import annotations

from hwbackend.device import Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, number, too_large


class Allocation:
    """`source` is pool (the library's own way) or driver (cudaMalloc and cudaFree)."""

    name = "allocation"
    axes = ("source", "num_bytes")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        if axes["source"] == "driver" and device.kind == "cpu":
            return "NumPy asks the operating system through one allocator; there is no pool to go round"
        return too_large(device, number(axes, "num_bytes"))

    def work(self, axes: Axes) -> Work:  # noqa: ARG002  nothing is moved
        return Work(num_bytes=0.0)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        size = number(axes, "num_bytes")
        if axes["source"] == "pool":
            return Prepared((lambda: device.empty(size, "uint8"),), graph=False)
        runtime = device.xp.cuda.runtime
        return Prepared((lambda: runtime.free(runtime.malloc(size)),), graph=False)
