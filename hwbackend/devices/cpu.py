"""The CPU as a device: NumPy arrays, threads for side streams, `perf_counter_ns` for events."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwbackend.allocation_log import AllocationLog
from hwbackend.device import Array, Call, Condition, Event, Graph, Identity, Kind, MemoryInfo, Stream
from hwbackend.devices import blas, host_facts

if TYPE_CHECKING:
    from hwbackend.ops import Ops

_FLUSH_TIMES: Final = 2  # times the last cache: a buffer of so many bytes, written, leaves nothing else in it
_PAGE: Final = 4096


class CpuEvent:
    """Passed, or not yet; with the time at which it was, and the error of a call before it."""

    __slots__ = ("_flag", "error", "time_ns")

    def __init__(self) -> None:
        self._flag = Flag()
        self.time_ns = 0
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._flag.is_set()

    def synchronize(self) -> None:
        self._flag.wait()
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait without raising: the error belongs to whoever queued the call."""
        self._flag.wait()

    def set(self) -> None:
        self.time_ns = perf_counter_ns()
        self._flag.set()


class MainStream:
    """Runs what it is given at once: the queue is always empty."""

    def run(self, call: Call) -> None:
        call()

    def record(self) -> CpuEvent:
        event = CpuEvent()
        event.set()
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, CpuEvent)
        event.wait()

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def close(self) -> None:
        """Nothing is held."""


class ThreadStream:
    """A queue worked off by a thread; the first error stops it, and is raised where somebody waits."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Call | CpuEvent | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._closed = False
        self._thread = Thread(target=self._work, daemon=True, name="stream")
        self._thread.start()

    def run(self, call: Call) -> None:
        self._queue.put(call)

    def record(self) -> CpuEvent:
        event = CpuEvent()
        self._queue.put(event)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, CpuEvent)
        self._queue.put(event.wait)

    def synchronize(self) -> None:
        if self._closed:
            return
        event = self.record()
        event.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, CpuEvent):
                item.error = self._error
                item.set()
            elif self._error is None:
                try:
                    item()
                except BaseException as error:  # noqa: BLE001  raised again where somebody waits
                    self._error = error


class CpuGraph:
    """Calls in a row: a CPU has nothing faster to offer."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = tuple(calls)

    def replay(self) -> None:
        for call in self._calls:
            call()


class CpuDevice:
    """NumPy on the cores that this process may use.

    While it is open, products take all of them but one, which is left to copies and to everybody else: a product
    whose threads wait for each other on a busy core takes many times as long. OPENBLAS_NUM_THREADS says otherwise.
    """

    kind: Kind = "cpu"
    xp: Any = np
    has_graphs = False
    num_devices = 1

    def __init__(self) -> None:
        self.main: Stream = MainStream()
        self._streams: list[ThreadStream] = []
        self._logs: list[AllocationLog] = []
        self._threads_before = blas.set_num_threads(max(1, host_facts.num_cores() - 1))

    @cached_property
    def ops(self) -> Ops:
        from hwbackend.kernels.numpy_ops import NumpyOps  # noqa: PLC0415

        return NumpyOps()

    @cached_property
    def identity(self) -> Identity:
        return host_facts.identity()

    def memory(self) -> MemoryInfo:
        return host_facts.memory()

    def condition(self) -> Condition:
        return host_facts.condition()

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        array = np.empty(shape, dtype=dtype)
        for log in self._logs:
            address = int(array.__array_interface__["data"][0])
            log.allocated(address, array.nbytes)
            weakref.finalize(array, log.freed, address)
        return array

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> Array:
        buffer = np.empty(num_bytes, dtype=np.uint8)
        if pinned:
            buffer[::_PAGE] = 0
        return buffer

    def to_device(self, array: Array) -> Array:
        return np.array(array, copy=True)

    def to_host(self, array: Array) -> Array:
        return np.array(array, copy=True)

    def copy(self, target: Array, source: Array, stream: Stream | None = None) -> None:
        (stream or self.main).run(lambda: np.copyto(_bytes(target), _bytes(source)))

    def stream(self) -> Stream:
        opened = ThreadStream()
        self._streams.append(opened)
        return opened

    def elapsed_s(self, start: Event, end: Event) -> float:
        assert isinstance(start, CpuEvent)
        assert isinstance(end, CpuEvent)
        return (end.time_ns - start.time_ns) * 1e-9

    def capture(self, calls: Sequence[Call]) -> Graph:
        graph = CpuGraph(calls)
        graph.replay()
        return graph

    def flush(self) -> None:
        self._scratch.fill(1)

    def synchronize(self) -> None:
        for stream in self._streams:
            stream.synchronize()

    @contextmanager
    def allocations(self) -> Iterator[AllocationLog]:
        log = AllocationLog()
        self._logs.append(log)
        try:
            yield log
        finally:
            self._logs.remove(log)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        if self._threads_before is not None:
            blas.set_num_threads(self._threads_before)

    @cached_property
    def _scratch(self) -> Array:
        return np.zeros(_FLUSH_TIMES * self.identity.cache_bytes, dtype=np.uint8)


def _bytes(array: Array) -> Array:
    """The same memory as bytes; refuses what is not contiguous, since that would be copied elsewhere."""
    flat = array.reshape(-1) if array.flags.c_contiguous else None
    if flat is None:
        raise ValueError("copy: arrays must be contiguous")
    return flat.view(np.uint8)
