"""How long prompts and answers are: laws of token counts, each drawn by its inverse distribution function.

A scenario writes a length as a number, {uniform: [low, high]}, {lognormal: {...}} or {quantiles: [...]}. One
uniform number is used per length, so that two laws under one seed are compared on common random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from workloads.bounds import MOST_TOKENS, Tokens
from workloads.errors import ConfigError
from workloads.trace import Int64

Float64 = NDArray[np.float64]

_CLOSE = 1e-4  # relative error of a mean

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FixedLengths(BaseModel):
    """Always the same count."""

    model_config = _FROZEN
    fixed: Tokens

    def at(self, u: Float64) -> Int64:
        """Return the lengths at the probabilities `u`."""
        return np.full(u.size, self.fixed, dtype=np.int64)

    @property
    def mean(self) -> float:
        """Mean in tokens."""
        return float(self.fixed)


def _pair(value: Any) -> Any:  # noqa: ANN401 - whatever a scenario holds
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise PydanticCustomError("lengths", "two bounds are expected, as [low, high]")
    return value


def _ordered(bounds: tuple[int, int]) -> tuple[int, int]:
    low, high = bounds
    if low > high:
        raise PydanticCustomError("lengths", f"low {low} is above high {high}; write [low, high]")
    return bounds


class UniformLengths(BaseModel):
    """Every whole number from low to high, both included, alike."""

    model_config = _FROZEN
    uniform: Annotated[tuple[Tokens, Tokens], BeforeValidator(_pair), AfterValidator(_ordered)]

    def at(self, u: Float64) -> Int64:
        """Return the lengths at the probabilities `u`."""
        low, high = self.uniform
        return np.minimum(low + np.floor(u * (high - low + 1)).astype(np.int64), high)

    @property
    def mean(self) -> float:
        """Mean in tokens."""
        return sum(self.uniform) / 2


class Lognormal(BaseModel):
    """Parameters of a truncated lognormal law.

    mean   mean of the lengths as drawn, in tokens: of the law after truncation, not before it (rounding to
           whole tokens moves it by less than half a token)
    sigma  standard deviation of the logarithm, before truncation
    low    least length, included
    high   greatest length, included; null: no upper end
    """

    model_config = _FROZEN
    mean: Annotated[float, Field(gt=0, le=MOST_TOKENS)]
    sigma: Annotated[float, Field(gt=0, le=10)]
    low: Tokens = 1
    high: Tokens | None = None

    @model_validator(mode="after")
    def _feasible(self) -> Lognormal:
        high = math.inf if self.high is None else self.high
        if self.low > high:
            raise PydanticCustomError("lengths", f"low {self.low} is above high {self.high}")
        if not self.low < self.mean < high:
            raise PydanticCustomError(
                "lengths",
                f"mean {self.mean:g} is not between low {self.low} and high {high}; "
                "it is the mean of the lengths as drawn",
            )
        return self


class LognormalLengths(BaseModel):
    """A lognormal variable on [low - 1/2, high + 1/2], rounded to the nearest whole number."""

    model_config = _FROZEN
    lognormal: Lognormal

    @cached_property
    def mu(self) -> float:
        """Mean of the logarithm before truncation, such that the truncated law has the mean asked for."""
        law = self.lognormal
        target = math.log(law.mean)
        reach = 40 + 1000 * law.sigma**2  # where the law presses against one of its bounds
        low, high = target - reach, target + reach
        for _ in range(200):
            mu = (low + high) / 2
            if self._log_mean(mu) < target:
                low = mu
            else:
                high = mu
        if abs(self._log_mean(low) - target) > _CLOSE:
            raise ConfigError(
                f"lognormal: mean {law.mean:g} is too near a bound, of low {law.low} and high {law.high}, "
                f"to be reached with sigma {law.sigma:g}; move it to the middle, or widen the bounds"
            )
        return low

    def at(self, u: Float64) -> Int64:
        """Return the lengths at the probabilities `u`."""
        from scipy.special import log_ndtr, ndtri_exp  # noqa: PLC0415 - costs 130 ms; few workloads need it

        law = self.lognormal
        a, b = self._bounds(self.mu)
        if a > 0:  # in the upper tail its mirror image keeps all digits, and logarithms keep them far out
            log_p = log_ndtr(-a) + np.log1p(u * np.expm1(log_ndtr(-b) - log_ndtr(-a)))
            z = -ndtri_exp(log_p)
        else:
            below = np.exp(log_ndtr(a) - log_ndtr(b))
            with np.errstate(divide="ignore"):  # u = 0: the lower bound
                z = ndtri_exp(log_ndtr(b) + np.log(below + u * (1 - below)))
        tokens = np.rint(np.exp(self.mu + law.sigma * np.clip(z, a, b)))
        return np.clip(tokens, law.low, law.high or MOST_TOKENS).astype(np.int64)

    @property
    def mean(self) -> float:
        """Mean in tokens."""
        return self.lognormal.mean

    def _bounds(self, mu: float) -> tuple[float, float]:
        law = self.lognormal
        a = (math.log(law.low - 0.5) - mu) / law.sigma
        return a, math.inf if law.high is None else (math.log(law.high + 0.5) - mu) / law.sigma

    def _log_mean(self, mu: float) -> float:
        sigma = self.lognormal.sigma
        a, b = self._bounds(mu)
        return mu + sigma**2 / 2 + _log_between(a - sigma, b - sigma) - _log_between(a, b)


def _log_between(a: float, b: float) -> float:
    """Return log(Phi(b) - Phi(a)) without cancellation in the tails."""
    from scipy.special import log_ndtr  # noqa: PLC0415 - as above

    if a > 0:
        a, b = -b, -a
    upper, lower = float(log_ndtr(b)), float(log_ndtr(a))
    return upper + math.log1p(-math.exp(lower - upper)) if lower < upper else upper - 745.0


def _ascending(quantiles: tuple[float, ...]) -> tuple[float, ...]:
    for before, after in pairwise(quantiles):
        if after < before:
            raise PydanticCustomError("lengths", f"{after:g} follows {before:g}; quantiles must ascend")
    return quantiles


class QuantileLengths(BaseModel):
    """Empirical quantiles at equal steps of probability, least and greatest included; linear in between."""

    model_config = _FROZEN
    quantiles: Annotated[
        tuple[Annotated[float, Field(ge=1, le=MOST_TOKENS)], ...],
        Field(min_length=2),
        AfterValidator(_ascending),
    ]

    def at(self, u: Float64) -> Int64:
        """Return the lengths at the probabilities `u`."""
        steps = np.linspace(0, 1, len(self.quantiles))
        return np.rint(np.interp(u, steps, self.quantiles)).astype(np.int64)

    @property
    def mean(self) -> float:
        """Mean in tokens."""
        return float(np.trapezoid(self.quantiles, dx=1 / (len(self.quantiles) - 1)))


TAG = "law "  # in front of a kind: in the location of an error it is told from the fields of a scenario

_KINDS = ("uniform", "lognormal", "quantiles")


def _kind(value: Any) -> str | None:  # noqa: ANN401 - whatever a scenario holds
    if isinstance(value, Mapping):
        found = [kind for kind in _KINDS if kind in value]
        return TAG + found[0] if len(found) == 1 else None
    if isinstance(value, BaseModel):
        return next((TAG + kind for kind in _KINDS if hasattr(value, kind)), None)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return TAG + "fixed" if whole and not isinstance(value, bool) else None


Lengths = Annotated[
    Annotated[Tokens, Tag(TAG + "fixed")]
    | Annotated[UniformLengths, Tag(TAG + "uniform")]
    | Annotated[LognormalLengths, Tag(TAG + "lognormal")]
    | Annotated[QuantileLengths, Tag(TAG + "quantiles")],
    Discriminator(
        _kind,
        custom_error_type="lengths",
        custom_error_message=(
            "a whole number of tokens, {uniform: [low, high]}, {lognormal: {mean: .., sigma: ..}} "
            "or {quantiles: [..]} is expected"
        ),
    ),
]


def law_of(lengths: Lengths) -> FixedLengths | UniformLengths | LognormalLengths | QuantileLengths:
    """Return the law behind what a scenario wrote."""
    return FixedLengths(fixed=lengths) if isinstance(lengths, int) else lengths


def draw_lengths(lengths: Lengths, rng: np.random.Generator, count: int) -> Int64:
    """Draw `count` token counts, one uniform number each."""
    return law_of(lengths).at(rng.random(count))
