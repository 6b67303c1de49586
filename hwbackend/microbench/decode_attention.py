"""Decode attention over batch x context x block size x KV dtype, paged or contiguous, uniform or mixed lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import FLOAT_BYTES, Axes, filled, number, too_large, turns
from hwbackend.microbench.gemm import array_dtype
from hwbackend.microbench.kv_pool import make_pool, pool_bytes


class DecodeAttention:
    """One new token for each of `batch` sequences over `kv_len` tokens (mixed: on average); one layer.

    `layout` is paged (block tables) or contiguous (one region a sequence, [S7]); `kv_dtype` int8 and fp8 stand for
    an 8-bit cache that attention dequantises.
    """

    name = "decode_attention"
    axes = ("kv_dtype", "batch", "kv_len", "heads", "kv_heads", "head_dim", "block_size", "layout", "lengths")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        dtype = str(axes["kv_dtype"])
        if dtype not in FLOAT_BYTES:
            return "the price list has no 8-bit KV of this device; `quantise` measures its conversion"
        tokens = number(axes, "batch") * number(axes, "kv_len")
        return too_large(
            device, 2 * pool_bytes(device, tokens, number(axes, "kv_heads"), number(axes, "head_dim"), dtype)
        )

    def work(self, axes: Axes) -> Work:
        batch, heads, dim = number(axes, "batch"), number(axes, "heads"), number(axes, "head_dim")
        read, size = float(mixed_lengths(axes).sum()), FLOAT_BYTES.get(str(axes["kv_dtype"]), 1)
        moved = 2.0 * size * number(axes, "kv_heads") * dim * read + 2.0 * size * batch * heads * dim
        return Work(num_bytes=moved, flops=4.0 * heads * dim * read)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        if axes["layout"] == "contiguous":
            return _contiguous(device, axes)
        batch, dim = number(axes, "batch"), number(axes, "head_dim")
        dtype, lengths = array_dtype(str(axes["kv_dtype"])), mixed_lengths(axes)
        kv = make_pool(
            device,
            lengths,
            block_size=number(axes, "block_size"),
            kv_heads=number(axes, "kv_heads"),
            head_dim=dim,
            dtype=dtype,
        )
        q, counts = filled(device, (batch, number(axes, "heads"), dim), dtype), _counts(device, lengths)
        attention = device.ops.decode_attention

        def attend(table: Array) -> Call:
            return lambda: attention(q, kv.pool, table, counts)

        return Prepared(tuple(attend(table) for table in kv.tables))


def mixed_lengths(axes: Axes) -> NDArray[np.int64]:
    """Tokens of each sequence: all alike, or evenly spread from a quarter to seven quarters of the mean."""
    batch, mean = number(axes, "batch"), number(axes, "kv_len")
    if axes["lengths"] == "uniform":
        return np.full(batch, mean, dtype=np.int64)
    return np.maximum(1, np.rint(mean * np.linspace(0.25, 1.75, batch))).astype(np.int64)


def _contiguous(device: Device, axes: Axes) -> Prepared:
    batch, dim, kv_heads = (number(axes, axis) for axis in ("batch", "head_dim", "kv_heads"))
    dtype, lengths = array_dtype(str(axes["kv_dtype"])), mixed_lengths(axes)
    shape = (batch, int(lengths.max()), kv_heads, dim)
    count = turns(device, 2 * float(np.prod(shape)) * FLOAT_BYTES[dtype])
    q, counts = filled(device, (batch, number(axes, "heads"), dim), dtype), _counts(device, lengths)
    attention = device.ops.contiguous_decode_attention

    def attend(k: Array, v: Array) -> Call:
        return lambda: attention(q, k, v, counts)

    turns_ = [(filled(device, shape, dtype), filled(device, shape, dtype)) for _ in range(count)]
    return Prepared(tuple(attend(k, v) for k, v in turns_))


def _counts(device: Device, lengths: NDArray[np.int64]) -> Array:
    return device.to_device(lengths.astype(np.int32))
