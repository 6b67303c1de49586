"""Decode attention over batch x context x block size x KV dtype, paged or contiguous, uniform or mixed lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, dtype_of, filled, number, too_large, turns, value_bytes
from hwbackend.microbench.kv_pool import kv_bytes, make_kv


class DecodeAttention:
    """One new token for each of `batch` sequences over `kv_len` tokens (mixed: on average); one layer.

    `layout` is paged (block tables) or contiguous (one region a sequence, [S7]); `kv_dtype` int8 and fp8 stand for
    an 8-bit cache that attention dequantises.
    """

    name = "decode_attention"
    axes = ("kv_dtype", "batch", "kv_len", "heads", "kv_heads", "head_dim", "block_size", "layout", "lengths")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        dtype = dtype_of(axes, "kv_dtype")
        if dtype == "fp8" and device.kind == "cpu":
            return "NumPy has no 8-bit floats; int8 is its 8-bit KV"
        if axes["layout"] == "contiguous" and dtype != device.ops.dtype:
            return f"contiguous KV is {device.ops.dtype} here; an 8-bit cache is paged"
        tokens = number(axes, "batch") * number(axes, "kv_len")
        return too_large(
            device, 2 * kv_bytes(device, tokens, number(axes, "kv_heads"), number(axes, "head_dim"), dtype)
        )

    def work(self, axes: Axes) -> Work:
        batch, heads, dim = number(axes, "batch"), number(axes, "heads"), number(axes, "head_dim")
        read, size = float(mixed_lengths(axes).sum()), value_bytes(axes, "kv_dtype")
        moved = 2.0 * size * number(axes, "kv_heads") * dim * read + 2.0 * size * batch * heads * dim
        return Work(num_bytes=moved, flops=4.0 * heads * dim * read)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        if axes["layout"] == "contiguous":
            return _contiguous(device, axes)
        batch, dim = number(axes, "batch"), number(axes, "head_dim")
        lengths = mixed_lengths(axes)
        kv = make_kv(
            device,
            lengths,
            block_size=number(axes, "block_size"),
            kv_heads=number(axes, "kv_heads"),
            head_dim=dim,
            dtype=dtype_of(axes, "kv_dtype"),
        )
        q = filled(device, (batch, number(axes, "heads"), dim), device.ops.dtype)
        counts, longest, attention = _counts(device, lengths), int(lengths.max()), device.ops.decode_attention

        def attend(table: Array) -> Call:
            return lambda: attention(q, kv.pool, table, counts, max_context_len=longest)

        return Prepared(tuple(attend(table) for table in kv.tables))


def mixed_lengths(axes: Axes) -> NDArray[np.int64]:
    """Tokens of each sequence: all alike, or evenly spread from a quarter to seven quarters of the mean."""
    batch, mean = number(axes, "batch"), number(axes, "kv_len")
    if axes["lengths"] == "uniform" or batch == 1:
        return np.full(batch, mean, dtype=np.int64)
    return np.maximum(1, np.rint(mean * np.linspace(0.25, 1.75, batch))).astype(np.int64)


def _contiguous(device: Device, axes: Axes) -> Prepared:
    batch, dim, kv_heads = (number(axes, axis) for axis in ("batch", "head_dim", "kv_heads"))
    dtype, lengths = dtype_of(axes, "kv_dtype"), mixed_lengths(axes)
    longest = int(lengths.max())
    shape = (batch, longest, kv_heads, dim)
    count = turns(device, 2 * float(np.prod(shape)) * value_bytes(axes, "kv_dtype"))
    q, counts = filled(device, (batch, number(axes, "heads"), dim), dtype), _counts(device, lengths)
    attention = device.ops.contiguous_decode_attention

    def attend(k: Array, v: Array) -> Call:
        return lambda: attention(q, k, v, counts, max_context_len=longest)

    pairs = [(filled(device, shape, dtype), filled(device, shape, dtype)) for _ in range(count)]
    return Prepared(tuple(attend(k, v) for k, v in pairs))


def _counts(device: Device, lengths: NDArray[np.int64]) -> Array:
    return device.to_device(lengths.astype(np.int32))
