"""GEMM: out[m, n] = in[m, k] x weight[k, n], one launch inside a CUDA graph."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

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
    SecondsOrZero,
    Sharpness,
    floats,
)

WEIGHT_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes per weight with its scales: fp8_block one float per 128 x 128, nvfp4 one fp8 scale per 16 values."""


def activation_bytes(weight_bytes: float) -> float:
    """Bytes of an input or output value: 16 bits, or as wide as the weights where those are wider."""
    return max(2.0, weight_bytes)


class Tile(Model):
    """One kernel shape: every SM computes m x n outputs per wave at its own rate, after a fixed start."""

    m: Count
    n: Count
    flops_per_s: FlopsPerSecond
    """Of one SM."""
    start_s: SecondsOrZero


class GemmCurve(Curve):
    """Roofline over waves of tiles, times a measured correction.

    t = (t0 + (compute^p + memory^p)^(1/p)) exp(R): a smooth maximum of
    compute = min over tiles of waves x (2 tile_m tile_n k / rate + start), where the waves lie between
    x = max(1, ceil(m / tile_m) ceil(n / tile_n) / SMs) and ceil(x), `quantised` of the way (wave quantisation
    as in NVIDIA's "Matrix Multiplication Background User's Guide"; kernels that split or stream tiles show
    less of it), and memory = (weights + input + output bytes) / W.
    R is the table's log factor at (m, n, k), local regression over measured shapes. Beyond the measured
    range R keeps its edge value and the base extrapolates.
    """

    launch_s: Seconds
    bytes_per_s: BytesPerSecond
    sharpness: Sharpness
    quantised: float = Field(ge=0, le=1)
    sms: Count
    tiles: tuple[Tile, ...] = Field(min_length=1)
    weight_bytes: BytesPerValue
    table: LogTable | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.table is not None:
            self.table.needs("m", "n", "k")
        return self

    def base(self, m: Float, n: Float, k: Float) -> Float:
        compute = np.asarray(np.inf)
        for tile in self.tiles:
            filled = np.maximum(np.ceil(m / tile.m) * np.ceil(n / tile.n) / self.sms, 1.0)
            waves = filled + self.quantised * (np.ceil(filled) - filled)
            compute = np.minimum(
                compute, waves * (2.0 * tile.m * tile.n * k / tile.flops_per_s + tile.start_s)
            )
        memory = (
            n * k * self.weight_bytes + activation_bytes(self.weight_bytes) * m * (n + k)
        ) / self.bytes_per_s
        high, low = np.maximum(compute, memory), np.minimum(compute, memory)
        p = self.sharpness
        return np.asarray(self.launch_s + high * (1.0 + (low / high) ** p) ** (1.0 / p))

    def arithmetic_s(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Float:
        """What the arithmetic of a GEMM would take at the highest rate of any tile [s]."""
        peak = self.sms * max(tile.flops_per_s for tile in self.tiles)
        return 2.0 * floats(m) * floats(n) * floats(k) / peak

    def seconds(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Float:
        m, n, k = floats(m), floats(n), floats(k)
        base = self.base(m, n, k)
        if self.table is None:
            return base
        return base * np.exp(self.table.log_factor(np.log2(m), np.log2(n), np.log2(k)))
