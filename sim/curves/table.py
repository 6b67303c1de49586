"""Correction tables: log(measured / base) on a grid of axes, as small integers, packed."""

from __future__ import annotations

import base64
import zlib
from functools import cached_property
from itertools import pairwise, product
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sim.curves.term import Float, Model

DEFAULT_STEP = 0.015
"""Resolution of a stored logarithm: rounding costs at most 0.75 %."""
LARGEST_STEP = 0.05
"""127 of them are a factor of 570: more than that corrects nothing, it replaces."""


class LogTable(Model):
    """Natural log of the factor on a base curve, multilinear between nodes, held constant beyond the edges.

    `axes` holds increasing node coordinates (already transformed, usually log2); `packed` is base64 of the
    zlib-compressed row-major int8 array of factors' logarithms in units of `step`.
    """

    axes: dict[str, tuple[float, ...]]
    step: float = Field(gt=0, le=LARGEST_STEP)
    packed: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        for axis, nodes in self.axes.items():
            if len(nodes) < 1 or any(b <= a for a, b in pairwise(nodes)):
                raise ValueError(f"axes.{axis}: nodes must increase")
            if not 0 <= nodes[0] <= nodes[-1] <= 1e4:
                raise ValueError(f"axes.{axis}: nodes are logarithms of counts, or numbers, from 0 up")
        self.values  # noqa: B018 - decoding here makes a broken table an error of the file, not of a query
        return self

    @classmethod
    def pack(cls, axes: dict[str, Float], log_factor: Float) -> Self:
        """Round to int8, with a coarser step where the range asks for it; a factor beyond 570 is cut there."""
        step = min(max(DEFAULT_STEP, float(np.abs(log_factor).max()) / 127), LARGEST_STEP)
        levels = np.clip(np.rint(log_factor / step), -127, 127).astype(np.int8)
        packed = base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()
        nodes = {axis: tuple(round(float(node), 6) for node in values) for axis, values in axes.items()}
        return cls(axes=nodes, step=round(step, 6), packed=packed)

    def needs(self, *axes: str) -> None:
        """Refuse a table of other axes than the curve interpolates along."""
        if tuple(self.axes) != axes:
            raise ValueError(f"table: axes must be {', '.join(axes)}, not {', '.join(self.axes)}")

    @cached_property
    def values(self) -> Float:
        shape = tuple(len(nodes) for nodes in self.axes.values())
        try:
            raw = zlib.decompress(base64.b64decode(self.packed, validate=True))
            levels = np.frombuffer(raw, dtype=np.int8).reshape(shape)
        except (ValueError, zlib.error) as error:
            raise ValueError(f"packed: not an int8 table of shape {shape}") from error
        return np.asarray(levels * self.step, dtype=np.float64)

    @cached_property
    def _nodes(self) -> tuple[Float, ...]:
        return tuple(np.asarray(nodes) for nodes in self.axes.values())

    def log_factor(self, *coordinates: Float) -> Float:
        """Interpolate at coordinates given in the order of the axes; scalars are contracted first."""
        table = self.values
        rest: list[tuple[NDArray[np.intp], Float, int]] = []
        for nodes, coordinate in zip(self._nodes, coordinates, strict=True):
            low, weight = _locate(nodes, coordinate)
            if weight.ndim == 0:
                axis = len(rest)
                below, above = table.take(low, axis), table.take(np.minimum(low + 1, len(nodes) - 1), axis)
                table = below + weight * (above - below)
            else:
                rest.append((low, weight, len(nodes)))
        return _multilinear(table, rest)


def _locate(nodes: Float, coordinate: Float) -> tuple[NDArray[np.intp], Float]:
    """Index of the node below and the weight of the one above; constant outside."""
    if len(nodes) == 1:
        return np.zeros(np.shape(coordinate), dtype=np.intp), np.zeros(np.shape(coordinate))
    inside = np.clip(coordinate, nodes[0], nodes[-1])
    low = np.clip(np.searchsorted(nodes, inside, side="right") - 1, 0, len(nodes) - 2)
    return low, np.asarray((inside - nodes[low]) / (nodes[low + 1] - nodes[low]))


def _multilinear(table: Float, axes: list[tuple[NDArray[np.intp], Float, int]]) -> Float:
    total: Float = np.zeros(())
    for corner in product((0, 1), repeat=len(axes)):
        weight: Float = np.ones(())
        index = []
        for up, (low, above, nodes) in zip(corner, axes, strict=True):
            weight = weight * (above if up else 1.0 - above)
            index.append(np.minimum(low + up, nodes - 1))
        total = total + weight * table[tuple(index)]
    return total
