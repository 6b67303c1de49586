"""Which law describes a sample: maximum likelihood, Kolmogorov-Smirnov distance, ranking.

Lengths are whole numbers, so a family is fitted and judged as the law of its variable rounded to the nearest
whole number, never below 1: P(v) = F(v + 1/2) - F(v - 1/2). The distance is then taken between two step
functions on the whole numbers, and ties are no trouble. Gaps are continuous; zeros (several arrivals on one
stamp of a coarse clock) are placed at half the smallest positive gap for the likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workloads import families
from workloads.errors import InputError

Float64 = NDArray[np.float64]

LENGTH_FAMILIES = ("lognormal", "truncated_lognormal", "exponential", "gamma", "weibull")
GAP_FAMILIES = ("exponential", "gamma", "weibull")
NOTE = (
    "p-values are asymptotic and flattering, since the parameters come from the same sample; at n = {n} even "
    "a distance of {reject:.4f} is rejected at 5 %, so read ks as a distance and compare families by it"
)

_FREE = {"lognormal": 2, "truncated_lognormal": 2, "exponential": 1, "gamma": 2, "weibull": 2}
LEAST = 20
_TINY = 1e-300


@dataclass(frozen=True)
class FamilyFit:
    """One family at its best.

    ks       greatest distance between the two distribution functions
    p_value  chance of a greater one, if the law were right and known beforehand
    aic      2 parameters - 2 log likelihood; lower is better, comparable within one sample
    """

    family: str
    parameters: dict[str, float]
    ks: float
    p_value: float
    log_likelihood: float
    aic: float


def fit_lengths(values: ArrayLike, names: Sequence[str] = LENGTH_FAMILIES) -> list[FamilyFit]:
    """Fit token counts by the likelihood of the rounded law; the smallest KS distance comes first."""
    sample = np.sort(np.asarray(values, dtype=np.float64))
    _check(sample)
    atoms, counts = np.unique(sample, return_counts=True)
    fits = [_fit_rounded(family, atoms, counts) for family in names]
    return sorted(fits, key=lambda fit: fit.ks)


def fit_gaps(gaps_s: ArrayLike, names: Sequence[str] = GAP_FAMILIES) -> list[FamilyFit]:
    """Fit gaps in seconds by their density; the smallest KS distance comes first."""
    sample = np.sort(np.asarray(gaps_s, dtype=np.float64))
    _check(sample)
    positive = np.where(sample > 0, sample, sample[sample > 0].min(initial=np.inf) / 2)
    fits = []
    for family in names:
        parameters = families.start(family, positive)
        density = families.log_density(family, parameters, positive).sum()
        lower, _ = families.tails(family, parameters, sample)
        steps = np.arange(1, sample.size + 1) / sample.size
        last = np.searchsorted(sample, sample, side="right") - 1  # equal values: all of them, or none
        first = np.searchsorted(sample, sample, side="left")
        distance = max(np.max(np.abs(steps[last] - lower)), np.max(np.abs(lower - first / sample.size)))
        fits.append(_result(family, parameters, float(distance), float(density), sample.size))
    return sorted(fits, key=lambda fit: fit.ks)


def note(size: int) -> str:
    """Say what a p-value means at this sample size."""
    return NOTE.format(n=size, reject=1.358 / np.sqrt(size))


def _check(sample: Float64) -> None:
    if sample.size < LEAST:
        raise InputError(f"fit: {sample.size} values are too few; at least {LEAST} are needed")
    if sample[0] == sample[-1]:
        raise InputError(f"fit: all {sample.size} values are {sample[0]:g}; there is no spread to fit")


def _fit_rounded(family: str, atoms: Float64, counts: NDArray[np.int64]) -> FamilyFit:
    from scipy.optimize import minimize  # noqa: PLC0415 - costs 220 ms

    bounds = (atoms[0] - 0.5, atoms[-1] + 0.5) if family == "truncated_lognormal" else None
    edges = np.concatenate([atoms - 0.5, atoms + 0.5])
    edges[edges < 1] = 0.0  # what is below 1 rounds up to 1

    def loss(free: Float64) -> float:
        lower, upper = families.tails(family, families.from_free(family, free), edges, bounds)
        half = atoms.size
        by_lower, by_upper = lower[half:] - lower[:half], upper[:half] - upper[half:]
        mass = np.where(lower[:half] < 0.5, by_lower, by_upper)
        return -float(counts @ np.log(np.maximum(mass, _TINY)))

    start = families.to_free(families.start(family, np.repeat(atoms, counts)))
    best = minimize(
        loss, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-6, "maxiter": 4000}
    )
    parameters = families.from_free(family, best.x)
    distance = _rounded_ks(family, parameters, atoms, counts, bounds)
    shown = _truncated(parameters, atoms) if bounds else parameters
    return _result(family, shown, distance, -float(best.fun), int(counts.sum()))


def _rounded_ks(
    family: str,
    parameters: dict[str, float],
    atoms: Float64,
    counts: NDArray[np.int64],
    bounds: families.Bounds | None,
) -> float:
    """Distance on the whole numbers: at each value, and just before the next one, where it may be greater."""
    empirical = np.cumsum(counts) / counts.sum()
    at, _ = families.tails(family, parameters, atoms + 0.5, bounds)
    before, _ = families.tails(family, parameters, np.maximum(atoms - 0.5, 0), bounds)
    before[atoms <= 1] = 0.0
    gap = np.abs(np.concatenate([[0.0], empirical[:-1]]) - before)
    return float(max(np.max(np.abs(empirical - at)), gap.max()))


def _truncated(parameters: dict[str, float], atoms: Float64) -> dict[str, float]:
    """As a scenario writes it: {lognormal: {mean, sigma, low, high}}, the mean being the truncated one."""
    mu, sigma = parameters["mu"], parameters["sigma"]
    lower, upper = atoms[0] - 0.5, atoms[-1] + 0.5
    from scipy.special import ndtr  # noqa: PLC0415 - costs 130 ms

    a, b = (np.log(lower) - mu) / sigma, (np.log(upper) - mu) / sigma
    share = (ndtr(b - sigma) - ndtr(a - sigma)) / (ndtr(b) - ndtr(a))
    mean = float(np.exp(mu + sigma**2 / 2) * share)
    return {"mean": mean, "sigma": sigma, "low": float(atoms[0]), "high": float(atoms[-1]), "mu": mu}


def _result(
    family: str,
    parameters: dict[str, float],
    ks: float,
    log_likelihood: float,
    size: int,
) -> FamilyFit:
    from scipy.special import kolmogorov  # noqa: PLC0415 - costs 130 ms

    p_value = float(kolmogorov(np.sqrt(size) * ks))
    aic = 2 * _FREE[family] - 2 * log_likelihood
    return FamilyFit(family, parameters, ks, p_value, log_likelihood, aic)
