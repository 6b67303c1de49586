"""A GPU as a device: CuPy arrays, CUDA streams and events, graphs by stream capture, identity from NVML.

Written for CuPy 13 and 14 (the calls used are the same in both). CuPy is imported when it is asked for, so that
the package works without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwbackend.allocation_log import AllocationLog
from hwbackend.device import Array, Call, Condition, Event, Graph, Identity, Kind, MemoryInfo, Stream
from hwbackend.devices.nvml import Nvml

if TYPE_CHECKING:
    from hwbackend.ops import Ops

_FLUSH_TIMES: Final = 2
_HOST_TO_HOST, _HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = range(4)  # cudaMemcpyKind


def missing() -> str | None:
    """Say why there is no GPU to open; None where there is one."""
    try:
        cupy = import_module("cupy")
    except ImportError:
        return "CuPy is not installed (pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12)"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no usable GPU ({error})"
    return None if count else "CuPy finds no GPU"


class CudaEvent:
    """A `cupy.cuda.Event`."""

    def __init__(self, raw: Any) -> None:  # noqa: ANN401  CuPy has no types
        self.raw = raw

    @property
    def done(self) -> bool:
        return bool(self.raw.done)

    def synchronize(self) -> None:
        self.raw.synchronize()


class CudaStream:
    """A `cupy.cuda.Stream` that is current while a call is queued on it."""

    def __init__(self, raw: Any) -> None:  # noqa: ANN401
        self.raw = raw

    def run(self, call: Call) -> None:
        with self.raw:
            call()

    def record(self) -> CudaEvent:
        return CudaEvent(self.raw.record())

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self.raw.wait_event(event.raw)

    def synchronize(self) -> None:
        self.raw.synchronize()

    def close(self) -> None:
        self.raw.synchronize()


class CudaGraph:
    """A captured graph; its temporaries live in a pool of its own for as long as it does."""

    def __init__(self, raw: Any, stream: Any, pool: Any) -> None:  # noqa: ANN401
        self._raw, self._stream, self._pool = raw, stream, pool

    def replay(self) -> None:
        self._raw.launch(self._stream)


class CudaDevice:
    """The GPU that CUDA lists first."""

    kind: Kind = "cuda"
    has_graphs = True

    def __init__(self) -> None:
        self.xp: Any = import_module("cupy")
        self._cuda: Any = self.xp.cuda
        self._runtime: Any = self._cuda.runtime
        self._before: Any = self._cuda.get_current_stream()
        self._main = CudaStream(self._cuda.Stream(non_blocking=True))
        self._main.raw.use()
        self.main: Stream = self._main
        self._streams: list[CudaStream] = []
        self.num_devices = int(self._runtime.getDeviceCount())

    @cached_property
    def ops(self) -> Ops:
        from hwbackend.kernels.cuda_ops import CudaOps  # noqa: PLC0415

        return CudaOps(dtype="float16")

    @cached_property
    def identity(self) -> Identity:
        device, runtime, nvml = self._cuda.Device(), self._runtime, self._nvml
        properties = runtime.getDeviceProperties(device.id)
        return Identity(
            kind="cuda",
            name=properties["name"].decode(),
            compute_units=int(properties["multiProcessorCount"]),
            cache_bytes=int(properties["l2CacheSize"]),
            memory=self.memory(),
            compute_capability=f"{properties['major']}.{properties['minor']}",
            facts={
                "driver": nvml.driver,
                "max_sm_clock_mhz": nvml.max_sm_clock_mhz,
                "memory_clock_mhz": nvml.memory_clock_mhz,
                "ecc": nvml.ecc,
                "power_limit_watt": nvml.power_limit_watt,
                "pcie_link": nvml.pcie_link,
                "cuda_of_driver": int(runtime.driverGetVersion()),
                "version_cuda_runtime": int(runtime.runtimeGetVersion()),
                "version_cupy": self.xp.__version__,
                "version_numpy": np.__version__,
            },
        )

    def memory(self) -> MemoryInfo:
        free, total = self._runtime.memGetInfo()
        return MemoryInfo(int(total), int(free), "cudaMemGetInfo")

    def condition(self) -> Condition:
        return Condition(
            wall_ns=perf_counter_ns(),
            busy_ns=0,
            own_ns=0,
            throttle_events=0,
            clock_mhz=self._nvml.sm_clock_mhz,
            max_clock_mhz=self._nvml.max_sm_clock_mhz,
            throttle_reasons=self._nvml.throttle_reasons,
        )

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        return self.xp.empty(shape, dtype=dtype)

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> Array:
        if not pinned:
            return np.empty(num_bytes, dtype=np.uint8)
        return import_module("cupyx").empty_pinned(num_bytes, dtype=np.uint8)

    def to_device(self, array: Array) -> Array:
        return self.xp.array(array)

    def to_host(self, array: Array) -> Array:
        return self.xp.asnumpy(array)

    def copy(self, target: Array, source: Array, stream: Stream | None = None) -> None:
        if target.nbytes != source.nbytes or not (target.flags.c_contiguous and source.flags.c_contiguous):
            raise ValueError("copy: contiguous arrays of equally many bytes are needed")
        kind = (_DEVICE_TO_HOST, _HOST_TO_HOST)[isinstance(source, np.ndarray)]
        if not isinstance(target, np.ndarray):
            kind = (_DEVICE_TO_DEVICE, _HOST_TO_DEVICE)[isinstance(source, np.ndarray)]
        queue = stream or self.main
        assert isinstance(queue, CudaStream)
        self._runtime.memcpyAsync(_pointer(target), _pointer(source), target.nbytes, kind, queue.raw.ptr)

    def stream(self) -> Stream:
        opened = CudaStream(self._cuda.Stream(non_blocking=True))
        self._streams.append(opened)
        return opened

    def elapsed_s(self, start: Event, end: Event) -> float:
        assert isinstance(start, CudaEvent)
        assert isinstance(end, CudaEvent)
        return float(self._cuda.get_elapsed_time(start.raw, end.raw)) * 1e-3

    def capture(self, calls: Sequence[Call]) -> Graph:
        pool, raw = self._cuda.MemoryPool(), self._main.raw
        with self._cuda.using_allocator(pool.malloc), raw:
            for call in calls:  # compiles kernels, and fills the pool: nothing is allocated while capturing
                call()
            raw.synchronize()
            raw.begin_capture()
            try:
                for call in calls:
                    call()
            finally:
                graph = raw.end_capture()
        return CudaGraph(graph, raw, pool)

    def flush(self) -> None:
        with self._main.raw:
            self._scratch.fill(1)

    def synchronize(self) -> None:
        self._runtime.deviceSynchronize()

    @contextmanager
    def allocations(self) -> Iterator[AllocationLog]:
        log = AllocationLog()

        class Hook(self._cuda.MemoryHook):  # type: ignore[misc, name-defined]  # CuPy has no types
            """Notes what is taken from CuPy's pool, and what goes back to it."""

            name = "servetwin allocation log"

            def malloc_postprocess(self, **facts: Any) -> None:  # noqa: ANN401
                if facts["mem_ptr"]:  # 0: it failed
                    log.allocated(int(facts["mem_ptr"]), int(facts["size"]))

            def free_postprocess(self, **facts: Any) -> None:  # noqa: ANN401
                log.freed(int(facts["mem_ptr"]))

        with Hook():
            yield log

    def close(self) -> None:
        self.synchronize()
        self._streams.clear()
        self._before.use()

    @cached_property
    def _nvml(self) -> Nvml:
        return Nvml(self._cuda.Device().pci_bus_id)

    @cached_property
    def _scratch(self) -> Array:
        return self.xp.zeros(_FLUSH_TIMES * self.identity.cache_bytes, dtype=np.uint8)


def _pointer(array: Array) -> int:
    return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)
