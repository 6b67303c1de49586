"""Families of laws on the positive numbers: distribution, density, maximum likelihood of the continuous law.

A family is a name and named parameters: lognormal (mu, sigma of the logarithm), exponential (scale), gamma and
weibull (shape, scale). Scipy is imported where it is used, for it takes longer than most commands.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Tails = tuple[Float64, Float64]  # F and 1 - F, each exact where it is small
Bounds = tuple[float, float]

_TINY = 1e-300


def tails(family: str, parameters: dict[str, float], x: Float64, bounds: Bounds | None = None) -> Tails:
    """Return F(x) and 1 - F(x); with bounds, given that the variable falls within them."""
    from scipy import special  # noqa: PLC0415 - costs 130 ms

    if family in {"lognormal", "truncated_lognormal"}:
        with np.errstate(divide="ignore"):
            z = (np.log(x) - parameters["mu"]) / parameters["sigma"]
        lower, upper = _float(special.ndtr(z)), _float(special.ndtr(-z))
        return (lower, upper) if bounds is None else _within(parameters, lower, upper, bounds)
    scaled = x / parameters["scale"]
    if family == "gamma":
        shape = parameters["shape"]
        return _float(special.gammainc(shape, scaled)), _float(special.gammaincc(shape, scaled))
    power = scaled ** parameters.get("shape", 1.0)
    return -np.expm1(-power), np.exp(-power)


def _float(values: object) -> Float64:
    return np.asarray(values, dtype=np.float64)


def _within(
    parameters: dict[str, float], lower: Float64, upper: Float64, bounds: tuple[float, float]
) -> Tails:
    (first, last), (first_up, last_up) = tails("lognormal", parameters, np.asarray(bounds))
    mass = max(last - first if first < 0.5 else first_up - last_up, _TINY)
    return np.clip((lower - first) / mass, 0, 1), np.clip((upper - last_up) / mass, 0, 1)


def log_density(family: str, parameters: dict[str, float], x: Float64) -> Float64:
    """Return the logarithm of the density of a continuous family at positive x."""
    from scipy.special import gammaln  # noqa: PLC0415 - costs 130 ms

    scale, shape = parameters["scale"], parameters.get("shape", 1.0)
    if family == "gamma":
        density: Float64 = (shape - 1) * np.log(x / scale) - x / scale - gammaln(shape) - np.log(scale)
    else:
        density = np.log(shape / scale) + (shape - 1) * np.log(x / scale) - (x / scale) ** shape
    return density


def start(family: str, x: Float64) -> dict[str, float]:
    """Maximum likelihood of the continuous law."""
    from scipy.special import digamma  # noqa: PLC0415 - costs 130 ms

    logs = np.log(x)
    if family in {"lognormal", "truncated_lognormal"}:
        return {"mu": float(logs.mean()), "sigma": float(logs.std())}
    if family == "exponential":
        return {"scale": float(x.mean())}
    if family == "gamma":
        spread = float(np.log(x.mean()) - logs.mean())
        shape = _root(lambda k: spread - float(np.log(k) - digamma(k)))
        return {"shape": shape, "scale": float(x.mean()) / shape}
    centred = logs - logs.max()  # powers of x / max(x) do not overflow
    shape = _root(lambda k: float(np.average(logs, weights=np.exp(k * centred)) - 1 / k - logs.mean()))
    scale = float(np.mean(np.exp(shape * centred)) ** (1 / shape) * np.exp(logs.max()))
    return {"shape": shape, "scale": scale}


def _root(rising: Callable[[float], float]) -> float:
    """Return the zero of a rising function of a positive shape, by bisection of its logarithm."""
    low, high = -12.0, 12.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(float(np.exp(middle))) > 0 else (middle, high)
    return float(np.exp((low + high) / 2))


def to_free(parameters: dict[str, float]) -> Float64:
    """Return parameters as unbounded numbers: positive ones as logarithms."""
    return np.array([value if name == "mu" else np.log(value) for name, value in parameters.items()])


def from_free(family: str, free: Float64) -> dict[str, float]:
    """Undo `to_free`."""
    names = {
        "lognormal": ("mu", "sigma"),
        "truncated_lognormal": ("mu", "sigma"),
        "exponential": ("scale",),
    }.get(family, ("shape", "scale"))
    pairs = zip(names, free, strict=True)
    return {name: float(value if name == "mu" else np.exp(value)) for name, value in pairs}
