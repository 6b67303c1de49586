"""Bandwidth of device memory: copy (a byte read and one written), read, write."""

from __future__ import annotations

from hwbackend.device import Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, filled, number, too_large


class DeviceMemory:
    """Sizes beyond the last cache measure memory, smaller ones the cache."""

    name = "device_memory"
    axes = ("op", "num_bytes")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(device, 2 * number(axes, "num_bytes"))

    def work(self, axes: Axes) -> Work:
        size = number(axes, "num_bytes")
        return Work(num_bytes=2.0 * size if axes["op"] == "copy" else float(size))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        values = number(axes, "num_bytes") // 4
        source = filled(device, values)
        if axes["op"] == "read":
            return Prepared((source.max,))
        if axes["op"] == "write":
            return Prepared((lambda: source.fill(1.0),))
        target = filled(device, values)
        return Prepared((lambda: device.copy(target, source),))
