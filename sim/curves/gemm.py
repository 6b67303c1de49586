"""GEMM: out[m, n] = in[m, k] x weight[k, n], one launch inside a CUDA graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from pydantic import PositiveFloat

from sim.curves.term import Curve, Float, floats

WEIGHT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16}
"""Bytes per weight with its scales: fp8_block one float per 128 x 128, nvfp4 one fp8 scale per 16 values."""


class GemmCurve(Curve):
    """t = t0 + max(2 m n k / P, (weights + input + output bytes) / W): the roofline (Williams et al., 2009)."""

    launch_s: PositiveFloat
    flops_per_s: PositiveFloat
    bytes_per_s: PositiveFloat
    weight_bytes: PositiveFloat

    def seconds(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Float:
        m, n, k = floats(m), floats(n), floats(k)
        moved = n * k * self.weight_bytes + 2.0 * m * (n + k)
        return self.launch_s + np.maximum(2.0 * m * n * k / self.flops_per_s, moved / self.bytes_per_s)
