"""The device: arrays, copies, streams, events, graphs, memory and identity behind one small interface.

    cpu    NumPy. Device and host memory are two arenas of the same DRAM; work of the main stream runs at once,
           that of side streams in threads of their own (copies and products release the interpreter's lock)
    cuda   CuPy. The main stream is a non-blocking one, and current while the device is open

Work is given to a stream as a call without arguments. On a GPU the call launches and returns; on a CPU the call is
the work. Times come from events: of a GPU's own clock, or `perf_counter_ns`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from workloads.errors import ConfigError

if TYPE_CHECKING:
    from hwbackend.allocation_log import AllocationLog
    from hwbackend.ops import Ops

Array = Any
"""An array of the device's own library: `numpy.ndarray` or `cupy.ndarray`."""
Call = Callable[[], object]
Kind = Literal["cpu", "cuda"]
CHOICES: Final = ("auto", "cpu", "cuda")


class Event(Protocol):
    """A point in the work of a stream."""

    @property
    def done(self) -> bool: ...
    def synchronize(self) -> None:
        """Wait until the stream has come here; raises what a call before it raised."""


class Stream(Protocol):
    """An ordered queue of work."""

    def run(self, call: Call) -> None:
        """Put `call` at the end of the queue."""

    def record(self) -> Event:
        """Mark the end of what is queued now."""

    def wait(self, event: Event) -> None:
        """Let nothing that is queued from now on start before `event`."""

    def synchronize(self) -> None:
        """Wait for all that is queued; raises what a call of it raised."""

    def close(self) -> None:
        """End a side stream once its queue is empty."""


class Graph(Protocol):
    """Calls recorded once, replayed as one launch on the main stream."""

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of the device as its driver, or the operating system, reports them."""

    total_bytes: int
    free_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What was measured on. `facts` are strings and numbers: driver, clocks, ECC, governor, BLAS, versions."""

    kind: Kind
    name: str
    compute_units: int
    """Cores that this process may use, or streaming multiprocessors."""
    cache_bytes: int
    """The last cache before memory."""
    memory: MemoryInfo
    compute_capability: str
    facts: dict[str, str | int | float | bool | None] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Equal for measurements that may stand in one table: same device, same libraries."""
        versions = sorted(f"{key}={value}" for key, value in self.facts.items() if key.startswith("version"))
        return "; ".join([self.kind, self.name, f"{self.compute_units} units", *versions])


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of the device at one moment; two of them say whether what ran between them was disturbed.

    wall_ns            of a clock that never stops
    busy_ns            CPU time that all cores of the machine were busy so far; 0 where nothing tells
    own_ns             CPU time of this process
    throttle_events    times that the clock was held back, where they are counted
    throttle_reasons   why the clock is held back now
    """

    wall_ns: int
    busy_ns: int
    own_ns: int
    throttle_events: int
    clock_mhz: float | None
    max_clock_mhz: float | None
    throttle_reasons: tuple[str, ...] = ()


class Device(Protocol):
    """What benchmarks, the harness and the engine ask of a device."""

    kind: Kind
    xp: Any
    """The array library: `numpy` or `cupy`."""
    main: Stream
    has_graphs: bool
    """Whether a replay costs less than the calls one by one."""
    num_devices: int

    @property
    def ops(self) -> Ops: ...
    @property
    def identity(self) -> Identity: ...
    def memory(self) -> MemoryInfo: ...
    def condition(self) -> Condition: ...

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        """Uninitialised device memory."""

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> Array:
        """Host memory as a NumPy array of bytes: pinned (on a CPU: touched beforehand), or fresh and pageable."""

    def to_device(self, array: Array) -> Array:
        """Return a copy of a host array on the device."""

    def to_host(self, array: Array) -> Array:
        """Return a copy of a device array as a NumPy array; waits for it."""

    def copy(self, target: Array, source: Array, stream: Stream | None = None) -> None:
        """Queue a copy of equally many bytes between contiguous arrays of any side (the main stream by default)."""

    def stream(self) -> Stream:
        """Open a side stream."""

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Seconds between two events that are done."""

    def capture(self, calls: Sequence[Call]) -> Graph:
        """Record calls that allocate nothing which must outlive them; they run once beforehand."""

    def flush(self) -> None:
        """Push what the last cache holds out of it (queued on the main stream)."""

    def synchronize(self) -> None:
        """Wait for all streams."""

    def allocations(self) -> AbstractContextManager[AllocationLog]:
        """Log what is allocated and freed within the block: through `empty`, or by CuPy's pool."""

    def close(self) -> None:
        """Release streams and buffers; the device is of no use afterwards."""


def open_device(name: str = "auto") -> Device:
    """Open a device by name; raises ConfigError where it is not there. `auto` is a GPU if there is one."""
    if name not in CHOICES:
        raise ConfigError(f"--device {name}: not one of {', '.join(CHOICES)}")
    if name != "cpu":
        from hwbackend.devices import cuda  # noqa: PLC0415  without CuPy it says so

        reason = cuda.missing()
        if reason is None:
            return cuda.CudaDevice()
        if name == "cuda":
            raise ConfigError(f"--device cuda: {reason}; use --device cpu")
    from hwbackend.devices.cpu import CpuDevice  # noqa: PLC0415

    return CpuDevice()
