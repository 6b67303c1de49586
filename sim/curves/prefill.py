"""Prefill attention of one layer: new tokens attend to cached context and to themselves, causally."""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from sim.curves.heads import pick_regime
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
    Size,
    floats,
)

TILE = 128
"""Query rows that one thread block handles in FlashAttention-like kernels."""
WRITE_HEADS = (1, 2, 4, 8, 16, 32, 64)
"""KV heads at which the cost of writing the cache is fitted: it is not proportional to them."""


def causal_area(new_tokens: Float, context_tokens: Float, window: int) -> Float:
    """Query-key pairs of one head: query i of q sees min(context + i, window) keys."""
    q, c = new_tokens, context_tokens
    if window <= 0:
        return q * c + q * (q + 1) / 2
    ramp = np.clip(window - c, 0, q)  # queries that still see everything before them
    return ramp * c + ramp * (ramp + 1) / 2 + (q - ramp) * window


class PrefillRegime(Model):
    """Fit for one (head_dim, window): rates of the device and of one thread block, cost of writing KV."""

    head_dim: Count
    window: Size
    launch_s: Seconds
    flops_per_s: FlopsPerSecond
    block_flops_per_s: FlopsPerSecond
    kv_bytes_per_s: BytesPerSecond
    write_s_per_value: tuple[Annotated[float, Field(gt=0, le=1e-3)], ...] = Field(
        min_length=len(WRITE_HEADS), max_length=len(WRITE_HEADS)
    )
    """Key and value of one token, KV head and channel: quantise and write into the cache; at WRITE_HEADS."""
    io_bytes_per_s: BytesPerSecond
    sharpness: Sharpness
    sequence_s: SecondsOrZero = 0.0
    """For each sequence of a launch, where a kernel takes them one by one (engines on a CPU)."""
    table: LogTable | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.table is not None:
            self.table.needs("new_tokens", "rows", "kv_heads", "group")
        return self


def prefill_base(
    fit: PrefillRegime,
    kv_bytes: float,
    layout: tuple[ArrayLike, ArrayLike, int, int],
    new_tokens: Float,
    context_tokens: Float,
    num_seqs: Float,
) -> Float:
    """Time before the table's correction; the layout is heads, kv_heads, head_dim, window."""
    heads, kv_heads, head_dim, window = floats(layout[0]), floats(layout[1]), layout[2], layout[3]
    q, c, b = new_tokens, context_tokens, num_seqs
    reach = q + (c if window <= 0 else np.minimum(c, window - 1.0))
    keys = reach if window <= 0 else np.minimum(reach, window + TILE - 1.0)
    terms = (
        4.0 * b * heads * head_dim * causal_area(q, c, window) / fit.flops_per_s,
        4.0 * head_dim * TILE * keys / fit.block_flops_per_s,
        2.0 * kv_bytes * b * kv_heads * head_dim * reach / fit.kv_bytes_per_s,
    )
    top = np.maximum(np.maximum(terms[0], terms[1]), terms[2])
    p = fit.sharpness
    work = top * sum((term / top) ** p for term in terms) ** (1.0 / p)
    per_value = np.exp(np.interp(np.log(kv_heads), np.log(WRITE_HEADS), np.log(fit.write_s_per_value)))
    write = b * q * kv_heads * head_dim * per_value
    io = 4.0 * b * q * heads * head_dim / fit.io_bytes_per_s
    return np.asarray(fit.launch_s + b * fit.sequence_s + write + io + work)


class PrefillCurve(Curve):
    """t = (t0 + sequences + write + io + smooth max(4 h d area / P, longest block, KV read / W)) exp(R).

    4 FLOPs per query-key pair and channel (two products, Dao et al., FlashAttention). The longest block
    handles TILE query rows over the whole reach and bounds small launches from below. R is the table's log
    factor; a chunk with context is looked up where a fresh prompt has the same mean number of keys per query
    and the same work: no rows with context were measured on data-centre devices.
    """

    kv_bytes: BytesPerValue
    regimes: tuple[PrefillRegime, ...] = Field(min_length=1)

    def launch(self, head_dim: int, window: int) -> float:
        return pick_regime(self.regimes, head_dim, window).launch_s

    def seconds(
        self,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: int,
        window: int,
        new_tokens: ArrayLike,
        context_tokens: ArrayLike,
        num_seqs: ArrayLike = 1,
    ) -> Float:
        fit = pick_regime(self.regimes, head_dim, window)
        q, c, b = floats(new_tokens), floats(context_tokens), floats(num_seqs)
        base = prefill_base(fit, self.kv_bytes, (heads, kv_heads, head_dim, window), q, c, b)
        if fit.table is None:
            return base
        alike = q if fit.window else np.maximum(2.0 * causal_area(q, c, window) / q - 1.0, 1.0)
        rows = b * floats(heads) * q / alike
        group = np.log2(floats(heads) / floats(kv_heads))
        coordinates = (np.log2(alike), np.log2(rows), np.log2(floats(kv_heads)), group)
        return base * np.exp(fit.table.log_factor(*coordinates))
