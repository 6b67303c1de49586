"""Which pages of a step count as read, by the attention mass on them.

An engine that reads all pages needs no recording. One that reads few (Quest: Tang et al., ICML 2024; H2O: Zhang et al.,
NeurIPS 2023) takes the heaviest; how many it must take to keep an answer is a matter of the model. So there are two
rules: a share of the mass, with as many pages as that takes, or a number of pages, with the mass that they have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hwbackend.attention.mass import Float64
from sim.errors import ConfigError

_ROUNDING = 1e-12  # of a sum of shares


class Choice(Protocol):
    """Takes the mass of all pages, gives those that are read: at least one."""

    def choose(self, mass: Float64) -> NDArray[np.bool_]:
        """[pages] -> [pages]. Of pages that weigh alike the later one goes first."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Covering:
    """The fewest pages that together hold this share of the mass."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"--mass {self.share:g}: a share of the attention mass, above 0 and at most 1")

    def choose(self, mass: Float64) -> NDArray[np.bool_]:
        if self.share == 1:
            return np.ones(mass.size, dtype=np.bool_)
        order = _heaviest_first(mass)
        held = np.cumsum(mass[order])
        count = int(np.searchsorted(held, self.share * held[-1] - _ROUNDING)) + 1
        return _mask(order[:count], mass.size)

    def __str__(self) -> str:
        return f"the fewest pages with {self.share:.4g} of the mass"


@dataclass(frozen=True, slots=True)
class Heaviest:
    """So many pages, those with the most mass; all where there are fewer."""

    pages: int

    def __post_init__(self) -> None:
        if self.pages < 1:
            raise ConfigError(f"--pages {self.pages}: give at least 1")

    def choose(self, mass: Float64) -> NDArray[np.bool_]:
        return _mask(_heaviest_first(mass)[: self.pages], mass.size)

    def __str__(self) -> str:
        return f"the {self.pages} pages with the most mass"


def _heaviest_first(mass: Float64) -> NDArray[np.int64]:
    return mass.size - 1 - np.argsort(-mass[::-1], kind="stable")


def _mask(chosen: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    mask = np.zeros(size, dtype=np.bool_)
    mask[chosen] = True
    return mask
