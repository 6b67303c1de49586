"""Sequences in a pool whose every other slot is poison, and what the references say about them.

A kernel that reads a slot, block or table entry that it has no business with gives NaN, and NaN fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hwbackend.kernels import reference
from hwbackend.ops import KvPool

# Of 16-bit kernels: weights, values and results are each rounded once, to 8 (bf16) or 11 (fp16) bits.
TOLERANCE = {"float32": 2e-6, "float16": 2**-10, "bfloat16": 2**-8}
GARBAGE = 1 << 30


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, and the heads beside it."""

    dtype: str
    kv_dtype: str
    head_dim: int
    num_heads: int
    num_kv_heads: int
    block_size: int


def e4m3_values():
    """Value of each of the 256 codes, by the definition: bias 7, no infinity, 0x7f and 0xff are NaN."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    value[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, value, -value)


def to_host(x):
    return x.get() if hasattr(x, "get") else x


def wide(ops, x):
    return to_host(ops.to_floats(x)).astype(np.float64)


def stored(ops, pool: KvPool):
    """What a pool holds, in float64 [2, num_blocks, block_size, kvh, d]."""
    data = to_host(pool.data)
    if pool.scales is None:
        return wide(ops, pool.data)
    scales = to_host(pool.scales)
    if pool.dtype == "int8":
        return data.astype(np.float64) * scales.transpose(0, 1, 3, 2)[..., None]
    return e4m3_values()[data] * scales[:, None, None, None, None]


def poison(pool: KvPool):
    """NaN everywhere (int8: in the scales, as its values have none)."""
    if pool.dtype == "int8":
        pool.data[:] = 127
        pool.scales[:] = np.nan
    else:
        pool.data[:] = {"float32": np.nan, "float16": np.nan, "bfloat16": 0x7FFF, "fp8": 0x7F}[pool.dtype]


class Sequences:
    """Random sequences of given lengths, written with `append_kv` to blocks in random order."""

    def __init__(self, ops, xp, shape: Shape, lengths, seed):
        self.ops, self.xp, self.shape = ops, xp, shape
        self.random = np.random.default_rng(seed)
        self.lengths = np.array(lengths, np.int32)
        size = shape.block_size
        needed = -(-self.lengths // size)
        self.pool = ops.new_pool(
            int(needed.sum()) + 2, size, shape.num_kv_heads, shape.head_dim, shape.kv_dtype
        )
        poison(self.pool)
        if shape.kv_dtype == "fp8":
            self.pool.scales[:] = xp.asarray([0.5, 2.0], dtype=np.float32)
        free = self.random.permutation(self.pool.num_blocks).astype(np.int32)
        # What a table has no use for names a block of poison.
        self.unused, free = free[0], free[1:]
        self.tables = np.full((len(lengths), max(1, int(needed.max(initial=0))) + 1), self.unused, np.int32)
        for row, count in enumerate(needed):
            self.tables[row, :count], free = free[:count], free[count:]
        self.write()

    def values(self, *shape):
        return self.ops.to_values(self.xp.asarray(self.random.standard_normal(shape).astype(np.float32)))

    def slots(self):
        size = self.shape.block_size
        return np.concatenate(
            [
                table[np.arange(n) // size] * size + np.arange(n) % size
                for table, n in zip(self.tables, self.lengths, strict=True)
            ]
        ).astype(np.int32)

    def write(self):
        """All tokens at once, in mixed order, between padding; keys and values are slices of one array."""
        slots = np.concatenate([self.slots(), np.full(3, -1, np.int32)])
        self.random.shuffle(slots)
        both = self.values(len(slots), 2 * self.shape.num_kv_heads, self.shape.head_dim)
        k, v = both[:, : self.shape.num_kv_heads], both[:, self.shape.num_kv_heads :]
        self.ops.append_kv(self.pool, k, v, self.xp.asarray(slots))
        self.written = (slots, wide(self.ops, k), wide(self.ops, v))

    def queries(self, count):
        return self.values(count, self.shape.num_heads, self.shape.head_dim)

    def tables_within(self, seen):
        """Tables whose blocks behind the latest `seen` tokens are gone; None: all are there."""
        tables = self.tables.copy()
        if seen is not None:
            gone = np.maximum(self.lengths - seen, 0) // self.shape.block_size
            tables[np.arange(tables.shape[1]) < gone[:, None]] = self.unused
        return self.xp.asarray(tables)

    def check_decode(self, window=None):
        q = self.queries(len(self.lengths))
        tables, lengths = self.tables_within(window), self.xp.asarray(self.lengths)
        got = wide(self.ops, self.ops.decode_attention(q, self.pool, tables, lengths, window=window))
        want = reference.decode_attention(
            wide(self.ops, q), stored(self.ops, self.pool), self.tables, self.lengths, window
        )
        self.close(got, want)

    def check_prefill(self, new_tokens, window=None):
        q = self.queries(new_tokens)
        context = int(self.lengths[0]) - new_tokens
        table = self.tables_within(None if window is None else window + new_tokens - 1)[0]
        got = wide(self.ops, self.ops.prefill_attention(q, self.pool, table, context, window=window))
        want = reference.prefill_attention(
            wide(self.ops, q), stored(self.ops, self.pool), self.tables[0], context, window
        )
        self.close(got, want)

    def close(self, got, want):
        values = stored(self.ops, self.pool)[1]
        largest = np.abs(values[np.isfinite(values)]).max(initial=1.0)
        assert got.shape == want.shape
        assert np.isfinite(want).all()
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=0, atol=largest * TOLERANCE[self.shape.dtype])


lengths = st.lists(st.integers(0, 90), min_size=1, max_size=4)
windows = st.none() | st.integers(1, 100)
seeds = st.integers(0, 2**32 - 1)
