"""Fused mixture-of-experts FFN of one layer: routing permutation, gate, up and down products."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from pydantic import PositiveFloat

from sim.curves.term import Curve, Float, floats

MOE_WEIGHT_BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,
    "nvfp4": 0.5 + 1 / 16,
    "w4a16_mxfp4": 0.5 + 1 / 32,
}


class MoeCurve(Curve):
    """t = t0 + max(6 rows hidden inter / P, touched expert weights / W).

    rows = tokens x top_k / ep token copies on this rank; touched experts = E (1 - (1 - 1 / E)^rows), the
    expected number of distinct experts under even routing.
    """

    launch_s: PositiveFloat
    flops_per_s: PositiveFloat
    bytes_per_s: PositiveFloat
    weight_bytes: PositiveFloat

    def seconds(
        self,
        tokens: ArrayLike,
        hidden: int,
        inter: int,
        top_k: int,
        experts: int,
        tp: int,
        ep: int = 1,
        distribution: str = "power_law_1.2",  # noqa: ARG002
    ) -> Float:
        local = max(experts / ep, 1.0)
        rows = floats(tokens) * top_k / ep
        touched = local * -np.expm1(rows * np.log1p(-1.0 / max(local, 1.0 + 1e-9)))
        inner = inter / tp
        flops = 6.0 * rows * hidden * inner
        moved = 3.0 * touched * hidden * inner * self.weight_bytes + 4.0 * rows * (hidden + inner)
        return self.launch_s + np.maximum(flops / self.flops_per_s, moved / self.bytes_per_s)
