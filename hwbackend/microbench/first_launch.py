"""What the first launch of a kernel costs: compiling it for the device, and loading it."""

from __future__ import annotations

from time import time_ns

from hwbackend.device import Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, filled, number

_SOURCE = 'extern "C" __global__ void {name}(float* x) {{ x[threadIdx.x] += {value}.0f; }}'


class FirstLaunch:
    """Each sample is another kernel that no cache has seen."""

    name = "first_launch"
    axes = ("kernels",)

    def skipped(self, device: Device, axes: Axes) -> str | None:  # noqa: ARG002
        return "NumPy compiles nothing: its first call is like any other" if device.kind == "cpu" else None

    def work(self, axes: Axes) -> Work:  # noqa: ARG002
        return Work(num_bytes=0.0)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        array, unseen = filled(device, 32), time_ns() % 1_000_000

        def first(index: int) -> Call:
            name = f"first_launch_{index}"
            source = _SOURCE.format(name=name, value=unseen + index)

            def call() -> None:
                device.xp.RawKernel(source, name)((1,), (32,), (array,))
                device.main.synchronize()

            return call

        return Prepared(tuple(first(i) for i in range(number(axes, "kernels"))), graph=False, once=True)
