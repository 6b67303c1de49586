"""What all curves share: frozen data, fitted ranges, float arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

Float = NDArray[np.float64]


def floats(values: ArrayLike) -> Float:
    return np.asarray(values, dtype=np.float64)


class Model(BaseModel):
    """Frozen data of a profile; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Curve(Model):
    """A fitted curve knows where its measurements lay."""

    source: str
    fitted: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Range of the measurements per axis; a query outside is an extrapolation."""

    def outside(self, axes: Mapping[str, ArrayLike]) -> str | None:
        """Name the first axis that leaves the measured range; None where all are inside."""
        for axis, values in axes.items():
            if axis not in self.fitted:
                continue
            low, high = self.fitted[axis]
            array = floats(values)
            if array.size and (array.min() < low or array.max() > high):
                worst = array.min() if array.min() < low else array.max()
                return f"{axis} = {worst:g} outside the measured {low:g} to {high:g}"
        return None
