"""Attention of one layer: prefill (compute-bound, by area) and decode (bandwidth-bound, by KV bytes)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from pydantic import PositiveFloat

from sim.curves.term import Curve, Float, floats

KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}


def causal_area(new_tokens: Float, context_tokens: Float, window: int) -> Float:
    """Query-key pairs of one head: query i of q sees min(context + i, window) keys."""
    q, c = new_tokens, context_tokens
    if window <= 0:
        return q * c + q * (q + 1) / 2
    ramp = np.clip(window - c, 0, q)  # queries that still see everything before them
    return ramp * c + ramp * (ramp + 1) / 2 + (q - ramp) * window


class PrefillCurve(Curve):
    """t = t0 + max(4 heads head_dim area / P, bytes / W), two products of 2 FLOPs a pair and channel."""

    launch_s: PositiveFloat
    flops_per_s: PositiveFloat
    bytes_per_s: PositiveFloat
    kv_bytes: PositiveFloat

    def launch(self, heads: int, kv_heads: int, head_dim: int, window: int) -> float:  # noqa: ARG002
        return self.launch_s

    def seconds(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        new_tokens: ArrayLike,
        context_tokens: ArrayLike,
        num_seqs: ArrayLike = 1,
    ) -> Float:
        q, c, b = floats(new_tokens), floats(context_tokens), floats(num_seqs)
        flops = 4.0 * heads * head_dim * causal_area(q, c, window)
        reach = np.minimum(c, window - 1 if window > 0 else math.inf)
        moved = 4.0 * q * heads * head_dim + 2.0 * self.kv_bytes * (reach + q) * kv_heads * head_dim
        return self.launch_s + b * np.maximum(flops / self.flops_per_s, moved / self.bytes_per_s)


class DecodeCurve(Curve):
    """t = t0 + KV bytes / W; W is higher where the keys and values fit into the L2 cache."""

    launch_s: PositiveFloat
    bytes_per_s: PositiveFloat
    kv_bytes: PositiveFloat

    def launch(self, heads: int, kv_heads: int, head_dim: int, window: int) -> float:  # noqa: ARG002
        return self.launch_s

    def seconds(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int,
        num_seqs: ArrayLike,
        context_tokens: ArrayLike,
    ) -> Float:
        b, c = floats(num_seqs), floats(context_tokens)
        if window > 0:
            c = np.minimum(c, b * window)
        moved = 2.0 * self.kv_bytes * kv_heads * head_dim * c + 4.0 * b * heads * head_dim
        return self.launch_s + moved / self.bytes_per_s
