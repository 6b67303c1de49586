"""Loading a shard of weights: file to host memory to device, piece by piece; or the two stages overlapped.

The file is written just before, so it comes from the page cache: what is measured is the copying, not a disk.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Final

from hwbackend.device import Array, Device, Event
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, filled, number, too_large

_PIECE: Final = 4 << 20


class Weights:
    """`overlap` is no (a piece is on the device before the next is read) or yes (two buffers, a side stream)."""

    name = "weights"
    axes = ("num_bytes", "overlap")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(device, 3 * number(axes, "num_bytes"))

    def work(self, axes: Axes) -> Work:
        return Work(num_bytes=float(number(axes, "num_bytes")))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        size = number(axes, "num_bytes")
        target = filled(device, size // 4 + 1).view("uint8")[:size]
        folder = tempfile.TemporaryDirectory(prefix="servetwin-shard-")
        path = Path(folder.name) / "shard"
        path.write_bytes(device.to_host(target).tobytes())
        piece = min(_PIECE, size)
        buffers = [device.host_buffer(piece, pinned=True) for _ in range(2)]
        stream = device.stream() if axes["overlap"] == "yes" else device.main

        def load() -> None:
            free: list[Event | None] = [None, None]
            with path.open("rb", buffering=0) as file:
                for number_, start in enumerate(range(0, size, piece)):
                    turn = number_ % 2
                    waited = free[turn]
                    if waited is not None:
                        waited.synchronize()
                    length = _read(file, buffers[turn], min(piece, size - start))
                    device.copy(target[start : start + length], buffers[turn][:length], stream)
                    free[turn] = stream.record()
                    if axes["overlap"] != "yes":
                        stream.synchronize()
            device.main.wait(stream.record())

        def close() -> None:
            stream.close()
            folder.cleanup()

        return Prepared((load,), graph=False, close=close)


def _read(file: IO[bytes], buffer: Array, length: int) -> int:
    """Fill the first `length` bytes of a buffer."""
    view, done = memoryview(buffer)[:length], 0
    while done < length:
        got = file.readinto(view[done:])  # type: ignore[attr-defined]  # of every raw file
        if not got:
            raise OSError(f"{file.name}: ended early")
        done += got
    return done
