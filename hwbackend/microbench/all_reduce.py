"""All-reduce over all GPUs of this machine, by NCCL through CuPy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hwbackend.device import Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, number


class AllReduce:
    """A ring moves 2 (g - 1) / g of the message over each link (Patarasu and Yuan, 2009)."""

    name = "all_reduce"
    axes = ("message_bytes", "gpus")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        if device.num_devices < 2:
            return f"one {'CPU' if device.kind == 'cpu' else 'GPU'}: nothing to reduce among"
        if number(axes, "gpus") > device.num_devices:
            return f"{device.num_devices} GPUs are here"
        return None

    def work(self, axes: Axes) -> Work:
        gpus = number(axes, "gpus")
        return Work(num_bytes=number(axes, "message_bytes") * 2.0 * (gpus - 1) / gpus)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        cupy, nccl = device.xp, import_module("cupy.cuda.nccl")
        gpus, values = number(axes, "gpus"), number(axes, "message_bytes") // 2
        communicators = nccl.NcclCommunicator.initAll(list(range(gpus)))
        streams: list[Any] = []
        buffers: list[Any] = []
        for gpu in range(gpus):
            with cupy.cuda.Device(gpu):
                streams.append(cupy.cuda.Stream(non_blocking=True))
                buffers.append(cupy.ones(values, dtype=cupy.float16))

        def reduce() -> None:
            nccl.groupStart()
            for gpu, (communicator, buffer) in enumerate(zip(communicators, buffers, strict=True)):
                with cupy.cuda.Device(gpu):
                    address = buffer.data.ptr
                    communicator.allReduce(
                        address, address, values, nccl.NCCL_FLOAT16, nccl.NCCL_SUM, streams[gpu].ptr
                    )
            nccl.groupEnd()
            for gpu, stream in enumerate(streams):
                with cupy.cuda.Device(gpu):
                    stream.synchronize()

        return Prepared((reduce,), graph=False)
