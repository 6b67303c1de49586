"""Copies between host and device memory: to the device (load), from it (offload), and both ways at once."""

from __future__ import annotations

from hwbackend.device import Call, Device, Stream
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, filled, number, too_large


class Transfer:
    """`memory` is the host's: pinned or pageable. Both ways: each of `num_bytes`, until the later one is done."""

    name = "transfer"
    axes = ("direction", "num_bytes", "memory")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(device, 2 * number(axes, "num_bytes"))

    def work(self, axes: Axes) -> Work:
        return Work(num_bytes=number(axes, "num_bytes") * (2.0 if axes["direction"] == "both" else 1.0))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        size, pinned = number(axes, "num_bytes"), axes["memory"] == "pinned"
        load, offload = (
            one_way(device, "load", size, pinned=pinned),
            one_way(device, "offload", size, pinned=pinned),
        )
        if axes["direction"] == "load":
            return Prepared((lambda: load(device.main),), graph=False)
        if axes["direction"] == "offload":
            return Prepared((lambda: offload(device.main),), graph=False)
        side = device.stream()

        def both() -> None:
            side.wait(device.main.record())
            offload(side)
            load(device.main)
            device.main.wait(side.record())

        return Prepared((both,), graph=False, close=side.close)


class OneWay:
    """A copy in one direction between two buffers of its own, on any stream."""

    def __init__(self, device: Device, direction: str, num_bytes: int, *, pinned: bool) -> None:
        host, own = device.host_buffer(num_bytes, pinned=pinned), filled(device, num_bytes // 4 + 1)
        own = own.view("uint8")[:num_bytes]
        self._device = device
        self._target, self._source = (own, host) if direction == "load" else (host, own)

    def __call__(self, stream: Stream) -> None:
        self._device.copy(self._target, self._source, stream)


def one_way(device: Device, direction: str, num_bytes: int, *, pinned: bool) -> OneWay:
    """Make the buffers of a copy."""
    return OneWay(device, direction, num_bytes, pinned=pinned)


def on(stream: Stream, copy: OneWay) -> Call:
    """Bind a copy to a stream."""
    return lambda: copy(stream)
