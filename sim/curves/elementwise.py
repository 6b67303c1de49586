"""Norms, rotary embedding, activation, residual adds: memory-bound kernels."""

from __future__ import annotations

from numpy.typing import ArrayLike

from sim.curves.term import BytesPerSecond, Curve, Float, Seconds, floats


class ElementwiseCurve(Curve):
    """One kernel: t = t0 + tokens x bytes per token (read and written) / W."""

    launch_s: Seconds
    bytes_per_s: BytesPerSecond

    def seconds(self, tokens: ArrayLike, bytes_per_token: ArrayLike) -> Float:
        return self.launch_s + floats(tokens) * floats(bytes_per_token) / self.bytes_per_s
