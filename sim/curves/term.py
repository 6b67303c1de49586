"""What all curves share: frozen data, fitted ranges, float arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Float = NDArray[np.float64]

# Bounds of what a file may say. They are wide of every device, and narrow enough that a price in nanoseconds
# stays far from the largest whole number: nothing in a step takes a minute.
Seconds = Annotated[float, Field(gt=0, le=60)]
SecondsOrZero = Annotated[float, Field(ge=0, le=60)]
SecondsPerItem = Annotated[float, Field(ge=0, le=1e-3)]
BytesPerSecond = Annotated[float, Field(ge=1e6, le=1e15)]
FlopsPerSecond = Annotated[float, Field(ge=1e9, le=1e18)]
BytesPerValue = Annotated[float, Field(gt=0, le=64)]
Sharpness = Annotated[float, Field(ge=0.1, le=64)]
Count = Annotated[int, Field(ge=1, le=2**40)]
Size = Annotated[int, Field(ge=0, le=2**40)]


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

    @model_validator(mode="after")
    def _check_fitted(self) -> Self:
        for axis, (low, high) in self.fitted.items():
            least = 0.0 if axis in ("context_tokens", "window") else 1.0  # all others count something
            if not least <= low <= high <= 1e15:
                raise ValueError(f"fitted.{axis}: {low:g} to {high:g} is no range from at least {least:g} up")
        return self

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
