"""A calibration: points in order, each timed by the harness, until the time is used up; then tables and a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter
from typing import Final

from calibration.collection import read_collection
from calibration.fit import Log, fit_profile, quiet
from calibration.holdout import residuals
from calibration.measurements import write_collection
from calibration.points import Extent, Point
from hwbackend.device import Device
from hwbackend.harness import Rules
from hwbackend.microbench.all import BENCHMARKS
from hwbackend.microbench.bench import Result, run_point
from hwbackend.microbench.fragmentation import probe
from hwbackend.samples import SampleStore
from sim.kv.replay.allocation_trace import write_allocations
from sim.profile import HostOverhead, Profile

_SHARE: Final = 1 / 150  # of the budget goes to a point,
_LEAST_S, _MOST_S = 0.02, 1.0  # within these bounds
_PART_S: Final = 5.0  # samples of so many seconds are lost at most where a calibration is killed
PASSES: Final = 5
_PRICES: Final = ("gemm", "prefill_attention", "decode_attention", "elementwise", "device_memory", "transfer")
TRACE: Final = "allocations.csv"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a calibration is."""

    done: int
    planned: int
    turn: int
    elapsed_s: float
    result: Result


def measure_points(
    device: Device,
    points: Sequence[Point],
    budget_s: float,
    store: SampleStore,
    tell: Callable[[Progress], None],
    *,
    clock: Callable[[], float] = perf_counter,
) -> list[Point]:
    """Measure what the store lacks, in order; returns the points that time did not suffice for.

    All points of round 0 are measured whatever the budget: without them there is nothing to fit. Time that is left
    goes into further passes over the terms of the price list, at most PASSES in all.
    """
    began = flushed = clock()
    rules = Rules(budget_s=min(_MOST_S, max(_LEAST_S, _SHARE * budget_s)))
    fresh: list[Result] = []
    left: list[Point] = []
    try:
        for number, (point, turn) in enumerate(_turns(points), start=1):
            if store.times(point.benchmark, point.axes) > turn:
                continue
            elapsed = clock() - began
            if elapsed >= budget_s and (point.due > 0 or turn > 0):
                left += [point] if turn == 0 else []
                continue
            result = run_point(device, BENCHMARKS[point.benchmark], point.axes, rules)
            fresh.append(result)
            tell(Progress(number, len(points), turn, elapsed, result))
            if clock() - flushed >= _PART_S:
                store.add(fresh)
                fresh, flushed = [], clock()
    finally:
        store.add(fresh)  # also where somebody interrupts
    return left


def _turns(points: Sequence[Point]) -> Iterator[tuple[Point, int]]:
    """All points once, then those of the price list again and again."""
    yield from ((point, 0) for point in points)
    prices = [point for point in points if point.benchmark in _PRICES]
    for turn in range(1, PASSES):
        yield from ((point, turn) for point in prices)


def fit_measurements(
    device: Device, store: SampleStore, name: str, extent: Extent, log: Log = quiet
) -> Profile:
    """Write the tables beside the samples, fit them, and judge the fit on points held out."""
    identity = device.identity
    engine = f"servetwin {version('servetwin')} operations on {identity.name}"
    write_collection(store.folder, store.results, identity, engine, name, extent.block_size)
    rows = read_collection(store.folder)
    profile = fit_profile(rows, log=log)
    host = HostOverhead(
        base_s=0.0,
        call_s=_call_s(store, device),
        source="none fitted: `servetwin profile fit --engine-log` fits it to an engine's steps",
    )
    return profile.with_host(host).model_copy(update={"residuals": tuple(residuals(rows, profile, log))})


def write_trace(device: Device, store: SampleStore) -> None:
    """Probe the device's allocator once, and leave its trace beside the samples."""
    path = store.folder / TRACE
    if not path.exists():
        write_allocations(path, probe(device).trace)


def _call_s(store: SampleStore, device: Device) -> float:
    """The host's time to start one operation; on a CPU it is within the measured times."""
    if device.kind == "cpu":
        return 0.0
    for result in store.results:
        if result.benchmark == "launch" and result.axes["op"] == "call" and result.measurement is not None:
            return result.measurement.summary.median_s
    return HostOverhead(base_s=0.0, source="none fitted").call_s
