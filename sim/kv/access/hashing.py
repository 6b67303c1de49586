"""Random numbers that depend on coordinates alone: ask for any of them, in any order, and get the same.

A hash of the coordinates, one mixed in after the other with the finaliser of SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)

UInt64 = NDArray[np.uint64]


def hashed(state: ArrayLike, coordinate: ArrayLike) -> UInt64:
    """Mix a coordinate (integers of 64 bits, broadcast against the state) into a state: the state of that point."""
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        x = (
            np.asarray(state).astype(np.uint64)
            + (np.asarray(coordinate).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        )
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def uniform(state: UInt64) -> NDArray[np.float64]:
    """Uniform numbers of states, between 0 and 1 and neither."""
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
