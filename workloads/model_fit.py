"""A trace -> its model. The shipped models were made by this function, from the files that they name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import rounded
from workloads.errors import InputError
from workloads.model import ArrivalModel, JointLengths, WorkloadModel
from workloads.prefixes import fit_prefixes
from workloads.trace import NS_PER_S, Int64, Trace

SLICES = 16  # of input length, for the conditional quantiles of output
PREFIX_SLICES = 10
STEP_S = 60.0  # of the rate's slow changes

_TAIL = (0.0005, 0.001, 0.002, 0.005)
_INPUT_P = (0.0, *_TAIL, *(i / 100 for i in range(1, 100)), *(1 - p for p in reversed(_TAIL)), 1.0)
_OUTPUT_P = (0.0, 0.01, 0.025, *(i / 20 for i in range(1, 20)), 0.965, 0.98, 0.99, 0.995, 1.0)
_JITTER = 0.01  # of a tick
_MOST = 0.95  # of the stamps
_LEAST = 100  # requests, below which quantiles mean little


def fit_model(trace: Trace, *, name: str, source: str, licence: str, note: str = "") -> WorkloadModel:
    """Measure a trace: quantiles are exact, gaps are taken after slow changes of the rate are taken out."""
    if len(trace) < _LEAST:
        raise InputError(
            f"{source}: {len(trace)} requests are too few for a model; at least {_LEAST} are needed"
        )
    order = np.argsort(trace.input_tokens, kind="stable")
    rank = np.empty(len(trace))
    rank[order] = (np.arange(len(trace)) + 0.5) / len(trace)
    outputs = [trace.output_tokens[part] for part in np.array_split(order, SLICES)]
    lengths = JointLengths(
        input_probabilities=_rounded(_INPUT_P, 4),
        input_tokens=_quantiles(trace.input_tokens, _INPUT_P),
        output_probabilities=_rounded(_OUTPUT_P, 4),
        output_tokens=tuple(_quantiles(part, _OUTPUT_P) for part in outputs),
    )
    prefixes = None
    if trace.hashes is not None:
        prefixes = fit_prefixes(trace.hashes, rank, PREFIX_SLICES)
    return WorkloadModel(
        name=name,
        source=source,
        licence=licence,
        note=note,
        requests=len(trace),
        lengths=lengths,
        arrivals=fit_arrivals(trace.arrival_ns) if trace.has_arrivals and trace.duration_ns else None,
        prefixes=prefixes,
    )


def fit_arrivals(arrival_ns: Int64) -> ArrivalModel:
    """Measure rate, slow changes per minute, and the burstiness that is left when those are taken out."""
    seconds = arrival_ns / NS_PER_S
    duration = float(seconds[-1])
    steps = max(1, round(duration / STEP_S))
    step_s = duration / steps
    counts = np.histogram(seconds, bins=steps, range=(0, duration))[0]
    relative = np.round(counts / counts.mean(), 3)
    knots = np.concatenate([[0], np.cumsum(relative)])
    tick_s = _tick_s(arrival_ns)
    if tick_s:
        per_tick = np.bincount(rounded(seconds / tick_s))
        expected = np.interp(
            (np.arange(per_tick.size) + 0.5) * tick_s / step_s, np.arange(steps) + 0.5, relative
        )
        dispersion = float(np.mean((per_tick / (expected * per_tick.mean()) - 1) ** 2) * per_tick.mean())
    else:
        gaps = np.diff(np.interp(seconds / step_s, np.arange(steps + 1), knots))
        dispersion = float(gaps.var() / gaps.mean() ** 2)
    return ArrivalModel(
        rate=float(f"{arrival_ns.size / duration:.6g}"),
        burstiness=float(f"{1 / dispersion:.4g}"),
        step_s=float(f"{step_s:.6g}"),
        relative=tuple(float(value) for value in relative),
        tick_s=tick_s,
    )


def _tick_s(arrival_ns: Int64) -> float:
    """Return the step of a clock so coarse that most requests share a stamp, else 0; 1 % jitter is fine."""
    stamps = np.unique(arrival_ns) / NS_PER_S
    if stamps.size * 2 > arrival_ns.size or stamps.size < 2:
        return 0.0
    tick_s = float(f"{np.median(np.diff(stamps)):.4g}")
    off = np.abs(stamps / tick_s - np.rint(stamps / tick_s))
    return tick_s if np.mean(off < _JITTER) > _MOST else 0.0


def _quantiles(values: Int64, probabilities: tuple[float, ...]) -> tuple[float, ...]:
    return _rounded(np.quantile(values, probabilities), 1)


def _rounded(values: NDArray[np.float64] | tuple[float, ...], digits: int) -> tuple[float, ...]:
    """Numbers for a small file: whole ones without a point."""
    short = (round(float(value), digits) for value in values)
    return tuple(int(value) if value == int(value) else value for value in short)
