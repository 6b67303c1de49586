"""Decode attention of one layer: one new token per sequence reads its whole cached context."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from sim.curves.heads import group_coordinate, pick_regime
from sim.curves.table import LogTable
from sim.curves.term import (
    BytesPerSecond,
    BytesPerValue,
    Count,
    Curve,
    Float,
    Model,
    Seconds,
    SecondsPerItem,
    Size,
    floats,
)


class DecodeRegime(Model):
    """Fit for one (head_dim, window)."""

    head_dim: Count
    window: Size
    launch_s: Seconds
    bytes_per_s: BytesPerSecond
    """As fitted to all rows; the table corrects it."""
    hbm_bytes_per_s: BytesPerSecond
    """Of keys and values far larger than the L2 cache."""
    query_s_per_value: SecondsPerItem
    """Per sequence, query head and channel."""
    table: LogTable | None = None
    between_layers: LogTable | None = None
    """On the time of a cache that other layers pushed out of L2, where layers were measured one after the other."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for table in (self.table, self.between_layers):
            if table is not None:
                table.needs("mean_context", "rows", "kv_heads", "group")
        return self


def decode_base(
    fit: DecodeRegime,
    kv_bytes: float,
    layout: tuple[ArrayLike, ArrayLike, int, int],
    num_seqs: Float,
    context_tokens: Float,
) -> Float:
    """Time before the table's correction; the layout is heads, kv_heads, head_dim, window."""
    heads, kv_heads, head_dim, window = floats(layout[0]), floats(layout[1]), layout[2], layout[3]
    read = np.minimum(context_tokens, num_seqs * window) if window > 0 else context_tokens
    moved = 2.0 * kv_bytes * kv_heads * head_dim * read
    queries = num_seqs * heads * head_dim * fit.query_s_per_value
    return np.asarray(fit.launch_s + moved / fit.bytes_per_s + queries)


class DecodeCurve(Curve):
    """t = (t0 + KV bytes / W + queries) exp(R): bandwidth-bound (one pass over the cache), as measured.

    R is the table's log factor at (context per sequence, sequences x KV heads, KV heads, group size). The
    measurements have equal contexts in a batch; unequal ones enter by their sum.

    The measurements read one cache again and again, so what fits into L2 came from L2. A served model reads
    the other layers in between: `from_hbm` bounds the time from below by KV bytes at `hbm_bytes_per_s`, and corrects
    that by another table where layers were measured one after the other (launches of medium size do not reach that
    bandwidth).
    """

    kv_bytes: BytesPerValue
    regimes: tuple[DecodeRegime, ...] = Field(min_length=1)

    def launch(self, head_dim: int, window: int) -> float:
        return pick_regime(self.regimes, head_dim, window).launch_s

    def seconds(
        self,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: int,
        window: int,
        num_seqs: ArrayLike,
        context_tokens: ArrayLike,
        *,
        from_hbm: bool = False,
    ) -> Float:
        fit = pick_regime(self.regimes, head_dim, window)
        b, c = floats(num_seqs), floats(context_tokens)
        base = decode_base(fit, self.kv_bytes, (heads, kv_heads, head_dim, window), b, c)
        mean = np.maximum(c / b, 1.0)
        if window > 0 and fit.window == 0:
            mean = np.minimum(mean, window)
        kv = floats(kv_heads)
        group = group_coordinate(floats(heads) / kv)
        coordinates = (np.log2(mean), np.log2(b * kv), np.log2(kv), group)
        measured = base if fit.table is None else base * np.exp(fit.table.log_factor(*coordinates))
        if not from_hbm:
            return measured
        streamed = self.streamed_s(kv_heads, head_dim, window, b, c)
        bound = np.maximum(measured, np.minimum(fit.launch_s, measured) + streamed)
        if fit.between_layers is None:
            return bound
        return bound * np.exp(fit.between_layers.log_factor(*coordinates))

    def streamed_s(
        self, kv_heads: ArrayLike, head_dim: int, window: int, num_seqs: ArrayLike, context_tokens: ArrayLike
    ) -> Float:
        """What reading the KV takes at the bandwidth of HBM alone."""
        fit = pick_regime(self.regimes, head_dim, window)
        b, c = floats(num_seqs), floats(context_tokens)
        read = np.minimum(c, b * window) if window > 0 else c
        return 2.0 * self.kv_bytes * floats(kv_heads) * head_dim * read / fit.hbm_bytes_per_s
