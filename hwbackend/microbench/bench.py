"""What a microbenchmark is, and the buffers that several of them need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.harness import Measurement, Prepared, Rules, Work, measure
from hwbackend.ops import VALUE_BYTES, Dtype

Axes = Mapping[str, int | str]
"""A point: a value for each axis of a benchmark."""

_TIMES_CACHE: Final = 2.0
_MOST_TURNS: Final = 64
_RANDOM: Final = 1 << 16  # values, repeated to any length


class Benchmark(Protocol):
    """Says what to call; knows nothing of clocks."""

    @property
    def name(self) -> str: ...
    @property
    def axes(self) -> tuple[str, ...]: ...

    def skipped(self, device: Device, axes: Axes) -> str | None:
        """Say why the point makes no sense on the device; None where it does."""

    def work(self, axes: Axes) -> Work:
        """Bytes that a call has to move, and operations that it has to do, at least."""

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        """Allocate what the calls need."""


@dataclass(frozen=True)
class Result:
    """A point that was measured, or why it was not."""

    benchmark: str
    axes: dict[str, int | str]
    work: Work
    measurement: Measurement | None = None
    skipped: str | None = None


def run_point(device: Device, benchmark: Benchmark, axes: Axes, rules: Rules) -> Result:
    """Measure one point of a benchmark."""
    if set(axes) != set(benchmark.axes):
        raise ValueError(f"{benchmark.name}: axes are {', '.join(benchmark.axes)}, not {', '.join(axes)}")
    point = {axis: axes[axis] for axis in benchmark.axes}
    work = benchmark.work(point)
    reason = benchmark.skipped(device, point)
    if reason is not None:
        return Result(benchmark.name, point, work, skipped=reason)
    prepared = benchmark.prepare(device, point)
    try:
        return Result(benchmark.name, point, work, measure(device, prepared, rules))
    finally:
        if prepared.close is not None:
            prepared.close()


def number(axes: Axes, axis: str) -> int:
    """Return the value of an axis that counts something."""
    value = axes[axis]
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"axis {axis}: {value!r} is no count")
    return value


def dtype_of(axes: Axes, axis: str = "dtype") -> Dtype:
    """Return the dtype that an axis names."""
    for known in get_args(Dtype):
        if axes[axis] == known:
            return cast("Dtype", known)
    raise ValueError(f"axis {axis}: {axes[axis]!r} is not one of {', '.join(get_args(Dtype))}")


def value_bytes(axes: Axes, axis: str = "dtype") -> int:
    return VALUE_BYTES[dtype_of(axes, axis)]


def filled(device: Device, shape: int | tuple[int, ...], dtype: Dtype = "float32") -> Array:
    """An array of random values near 1 in size (8 bits: any), in the arrays that `hwbackend.ops` has for a dtype.

    Every page of it is touched.
    """
    random = np.random.default_rng(0)
    block: NDArray[Any] = random.standard_normal(_RANDOM, dtype=np.float32)
    if dtype == "bfloat16":
        block = (block.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype == "float16":
        block = block.astype(np.float16)
    elif dtype == "fp8":
        block = random.integers(0, 0x60, _RANDOM, dtype=np.uint8)  # e4m3, finite
    elif dtype == "int8":
        block = random.integers(-127, 128, _RANDOM, dtype=np.int8)
    source, out = device.to_device(block), device.xp.empty(shape, dtype=block.dtype)
    flat, whole = out.reshape(-1), out.size // _RANDOM * _RANDOM
    flat[:whole].reshape(-1, _RANDOM)[...] = source
    flat[whole:] = source[: out.size - whole]
    return out


def turns(device: Device, num_bytes: float) -> int:
    """How many buffers of so many bytes it takes until none of them is in the last cache when its turn comes."""
    return min(
        _MOST_TURNS, max(1, math.ceil(_TIMES_CACHE * device.identity.cache_bytes / max(num_bytes, 1))) + 1
    )


def too_large(device: Device, num_bytes: float) -> str | None:
    """Say that a point does not fit into memory, with room left for everybody else."""
    free = device.memory().free_bytes
    if num_bytes <= 0.6 * free:
        return None
    return f"needs {num_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
