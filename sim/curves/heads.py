"""What prefill and decode attention share: bytes per value, coordinates of head layouts, choice of regime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sim.curves.term import Float, floats

KV_BYTES = {"float32": 4.0, "bfloat16": 2.0, "fp8": 1.0}
FULL = 16384
"""A window that full attention counts as, when the nearest measured one is looked for."""


class Regime(Protocol):
    @property
    def head_dim(self) -> int: ...
    @property
    def window(self) -> int: ...


R = TypeVar("R", bound=Regime)


def pick_regime(regimes: Sequence[R], head_dim: int, window: int) -> R:
    """Take the measured (head_dim, window) nearest to the asked one, by ratio, head_dim first.

    With windows 0 and 128 measured, windows up to 1,448 count as narrow, wider ones as full attention whose
    context is clipped.
    """

    def distance(regime: R) -> tuple[float, float]:
        apart = (regime.window or FULL) / (min(window, FULL) or FULL)
        return abs(math.log2(regime.head_dim / head_dim)), abs(math.log2(apart))

    return min(regimes, key=distance)


def group_coordinate(group: ArrayLike) -> Float:
    """Place a GQA group size (heads / kv_heads) of a decode launch on an axis where alike kernels are near.

    Kernels treat one query head per KV head apart, pack up to 16 into one tensor-core tile, and take larger
    tiles above: so 1 is a step away from 2, and 17 from 16.
    """
    g = floats(group)
    return np.where(g <= 1, 0.0, 1.0 + np.log2(np.maximum(g, 1.0)) + np.where(g > 16, 1.0, 0.0))
