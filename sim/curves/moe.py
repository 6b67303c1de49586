"""Fused mixture-of-experts FFN of one layer: routing permutation, gate, up and down products."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from sim.curves.local import smoother
from sim.curves.table import LogTable
from sim.curves.term import (
    BytesPerSecond,
    BytesPerValue,
    Count,
    Curve,
    Float,
    FlopsPerSecond,
    Model,
    Seconds,
    floats,
)

MOE_WEIGHT_BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,
    "nvfp4": 0.5 + 1 / 16,
    "w4a16_mxfp4": 0.5 + 1 / 32,
}
BANDWIDTH = np.array([0.4, 0.4, 0.4, 0.4])
"""Of the local regression, in log2 of (experts here, inner width here, copies per token here, hidden)."""


class MoeShape(Model):
    """A measured layer and its split: tensor-parallel degree divides `inter`, expert-parallel the experts."""

    hidden: Count
    inter: Count
    top_k: Count
    experts: Count
    tp: Count
    ep: Count

    def point(self) -> Float:
        here = self.experts / self.ep
        return np.log2([here, self.inter / self.tp, self.top_k / self.ep, float(self.hidden)])


class MoeCurve(Curve):
    """t = (t0 + permutation + max(6 rows hidden inter / P, touched expert weights / W)) exp(R).

    rows = tokens x top_k / ep token copies on this rank, padded by `pad_rows` per touched expert; touched =
    E (1 - (1 - 1 / E)^rows), the expected number of distinct experts under even routing (an occupancy
    problem). R comes from the measured shapes near the asked one, per token count and load distribution.
    """

    launch_s: Seconds
    flops_per_s: FlopsPerSecond
    bytes_per_s: BytesPerSecond
    permute_bytes_per_s: BytesPerSecond
    pad_rows: float = Field(gt=0, le=1e6)
    weight_bytes: BytesPerValue
    shapes: tuple[MoeShape, ...] = ()
    distributions: tuple[str, ...] = ()
    table: LogTable | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.table is not None:
            self.table.needs("shape", "distribution", "tokens")
            if self.table.values.shape[:2] != (len(self.shapes), len(self.distributions)):
                raise ValueError("table: one row per shape and distribution is needed")
        return self

    @cached_property
    def _points(self) -> Float:
        return np.stack([shape.point() for shape in self.shapes])

    def base(self, tokens: Float, shape: MoeShape) -> Float:
        here = max(shape.experts / shape.ep, 1.0)
        rows = tokens * shape.top_k / shape.ep
        touched = here * -np.expm1(rows * np.log1p(-1.0 / max(here, 1.000001)))
        inner = shape.inter / shape.tp
        compute = 6.0 * (rows + touched * self.pad_rows) * shape.hidden * inner / self.flops_per_s
        memory = 3.0 * touched * shape.hidden * inner * self.weight_bytes / self.bytes_per_s
        permute = 4.0 * rows * (shape.hidden + inner) / self.permute_bytes_per_s
        return self.launch_s + permute + np.hypot(compute, memory)

    def seconds(self, tokens: ArrayLike, shape: MoeShape, distribution: str) -> Float:
        t = floats(tokens)
        base = self.base(t, shape)
        if self.table is None:
            return base
        weights = smoother(self._points, shape.point()[None], BANDWIDTH)[0]
        values = self.table.values[:, self.distributions.index(distribution)]
        log_factor = np.clip(weights @ values, values.min(axis=0), values.max(axis=0))
        return base * np.exp(np.interp(np.log2(t), self.table.axes["tokens"], log_factor))
