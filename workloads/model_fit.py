"""A trace -> its model. The shipped models were made by this function, from the files that they name."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import rounded
from workloads.errors import InputError
from workloads.families import tails
from workloads.model import ArrivalModel, GapLaw, JointLengths, WorkloadModel
from workloads.prefixes import fit_prefixes
from workloads.trace import NS_PER_S, Int64, Trace

Float64 = NDArray[np.float64]

SLICES = 16  # of input length, for the conditional quantiles of output
PREFIX_SLICES = 10
STEP_S = 60.0  # of the rate's slow changes

_TAIL = (0.0005, 0.001, 0.002, 0.005)
_INPUT_P = (0.0, *_TAIL, *(i / 100 for i in range(1, 100)), *(1 - p for p in reversed(_TAIL)), 1.0)
_OUTPUT_P = (0.0, 0.01, 0.025, *(i / 20 for i in range(1, 20)), 0.965, 0.98, 0.99, 0.995, 1.0)
_JITTER = 0.01  # of a tick
_MOST = 0.95  # of the stamps
_FAR = 0.1  # distance of distributions, from which on gaps are not called gamma
_SCORES = tuple(i / 5 for i in range(-18, 19))  # normal scores of the gap quantiles
_LAGS = 50  # over which gaps are correlated
_HOLDS = tuple(float(f"{10 ** (i / 16):.3g}") for i in range(5, 49))  # requests that share a level: 2 to 1000
_SHARES = tuple(i / 50 for i in range(31))  # of variance; ranks understate how runs of short gaps add up
_WINDOW_S = 10.0  # in which counts shall vary as in the trace
_DRAWS = 20  # from which their variance is known
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
    """Measure rate, slow changes per minute, and the gaps that are left: gamma, or a law where that is far off."""
    seconds = arrival_ns / NS_PER_S
    duration = float(seconds[-1])
    steps = max(1, round(duration / STEP_S))
    step_s = duration / steps
    counts = np.histogram(seconds, bins=steps, range=(0, duration))[0]
    relative = np.round(counts / counts.mean(), 3)
    knots = np.concatenate([[0], np.cumsum(relative)])
    tick_s = _tick_s(arrival_ns)
    far = False
    if tick_s:
        per_tick = np.bincount(rounded(seconds / tick_s))
        expected = np.interp(
            (np.arange(per_tick.size) + 0.5) * tick_s / step_s, np.arange(steps) + 0.5, relative
        )
        dispersion = float(np.mean((per_tick / (expected * per_tick.mean()) - 1) ** 2) * per_tick.mean())
    else:
        gaps = np.diff(np.interp(seconds / step_s, np.arange(steps + 1), knots))
        dispersion = float(gaps.var() / gaps.mean() ** 2)
        far = _gamma_distance(gaps / gaps.mean(), dispersion) > _FAR
    if not far:  # what gamma gaps add to the counts of the steps by chance is not in the rate
        by_rate = max(0.0, 1 - dispersion * float(counts.mean() / max(counts.var(), 1.0)))
        relative = np.round(1 + (relative - 1) * np.sqrt(by_rate), 3)
    model = ArrivalModel(
        rate=float(f"{arrival_ns.size / duration:.6g}"),
        burstiness=float(f"{1 / dispersion:.4g}"),
        step_s=float(f"{step_s:.6g}"),
        relative=tuple(float(value) for value in relative),
        tick_s=tick_s,
    )
    return _with_gap_law(model, seconds) if far else model


def _gamma_distance(gaps: Float64, dispersion: float) -> float:
    """Greatest distance of the distribution of gaps (mean 1) from the gamma law that has their dispersion."""
    sample = np.sort(gaps)
    lower, _ = tails("gamma", {"shape": 1 / dispersion, "scale": dispersion}, sample)
    return float(np.max(np.abs((np.arange(sample.size) + 0.5) / sample.size - lower)))


def _with_gap_law(model: ArrivalModel, seconds: Float64) -> ArrivalModel:
    """Measure the gaps that lie within one step, by their ranks; idle time across steps is the steps' own."""
    step = np.minimum((seconds / model.step_s).astype(np.int64), len(model.relative) - 1)
    within = np.diff(step) == 0
    gaps = np.diff(seconds)[within]
    if np.count_nonzero(gaps) < _LEAST:
        return model
    gaps = np.maximum(gaps, gaps[gaps > 0].min() / 2)
    normal = NormalDist()
    scores = np.empty(gaps.size)
    ranks = (np.arange(gaps.size) + 0.5) / gaps.size
    scores[np.argsort(gaps, kind="stable")] = [normal.inv_cdf(rank) for rank in ranks.tolist()]
    logs = np.log(np.asarray(model.relative)[step[1:][within]])
    logs -= logs.mean()
    slope = float(logs @ scores / (logs @ logs)) if logs.any() else 0.0
    quantiles = np.quantile(gaps, [normal.cdf(score) for score in _SCORES]) * model.rate
    law = {
        "scores": _SCORES,
        "gaps": tuple(float(f"{value:.4g}") for value in quantiles),
        "level_hold": _hold(scores - slope * logs),
        "slope": round(slope, 3),
    }
    wanted = _dispersion(seconds)
    best = (np.inf, model)
    for share in _SHARES:
        tried = model.model_copy(update={"gaps": GapLaw(**law, level_share=share)})
        drawn = [_dispersion(tried.process().first(rng, seconds.size) / NS_PER_S) for rng in _generators()]
        best = min(best, (abs(float(np.log(np.mean(drawn) / wanted))), tried), key=lambda pair: pair[0])
    return best[1]


def _hold(scores: Float64) -> float:
    """Return the hold h for which a correlation s (1 - 1/h)^k over lags k comes nearest to that of the scores."""
    lags = np.arange(1, min(_LAGS, scores.size - 1) + 1)
    measured = np.array([np.mean(scores[:-lag] * scores[lag:]) for lag in lags.tolist()])
    best = (np.inf, _HOLDS[0])
    for hold in _HOLDS:
        shape = (1 - 1 / hold) ** lags
        share = max(float(measured @ shape / (shape @ shape)), 0.0)
        best = min(best, (float(np.sum((measured - share * shape) ** 2)), hold))
    return best[1]


def _dispersion(seconds: Float64) -> float:
    """Variance over mean of the counts in 10 s."""
    counts = np.bincount((seconds / _WINDOW_S).astype(np.int64))
    return float(counts.var() / counts.mean())


def _generators() -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(_DRAWS)]


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
