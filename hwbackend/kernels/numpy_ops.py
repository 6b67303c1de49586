"""The operations on a CPU: float32 NumPy and its BLAS, KV in float32 or int8.

What costs time is what costs time on any device: bytes of KV gathered and multiplied. Sequences of similar length
decode together, so that Python runs once for a group and not once for a token; buffers are kept from call to call.
An instance belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from hwbackend.kernels import checks
from hwbackend.kernels.workspace import Workspace
from hwbackend.ops import Dtype, KvPool, ShapeError

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Int8s = NDArray[np.int8]

_GROUP_BYTES: Final = 1 << 20
"""KV that is gathered at once: it should still be in the L2 when it is multiplied (4 MiB took up to twice as long)."""
_GROUP_PADDING: Final = 1.25
"""Greatest share of gathered tokens to true ones in a group of sequences."""
_QUERY_TILE: Final = 128
"""Queries of a chunk that are scored at once: keys that none of them sees are left out."""


class NumpyOps:
    """`hwbackend.ops.Ops` on the CPU."""

    dtype: Dtype = "float32"

    def __init__(self) -> None:
        self._workspace = Workspace()

    def to_values(self, x: Floats) -> Floats:
        return np.asarray(x, np.float32)

    def to_floats(self, x: Floats) -> Floats:
        return x

    def add(self, x: Floats, y: Floats) -> None:
        checks.require(x.shape == y.shape, "add", f"{x.shape} and {y.shape}; must be one shape")
        x += y

    def matmul(self, x: Floats, w: Floats, out: Floats | None = None) -> Floats:
        checks.check_matmul(x, w)
        return np.matmul(x, w, out=out)

    def matmul_8bit(self, x: Int8s, w: Int8s) -> NDArray[np.int32]:
        """By float32 BLAS, exact while k * 127^2 < 2^24 (k <= 1040): longer rows are added up in parts."""
        checks.check_matmul(x, w.T)
        total = np.zeros((x.shape[0], w.shape[0]), np.int32)
        for start in range(0, x.shape[1], 1024):
            part = x[:, start : start + 1024].astype(np.float32) @ w[:, start : start + 1024].T.astype(
                np.float32
            )
            total += part.astype(np.int32)
        return total

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        checks.check_norm(x, weight)
        squares = np.einsum("mi,mi->m", x, x)
        scale = 1 / np.sqrt(squares / np.float32(x.shape[1]) + np.float32(eps))
        out = x * scale[:, None]
        out *= weight
        return cast(Floats, out)

    def rope_table(self, max_positions: int, head_dim: int, theta: float) -> Floats:
        return rope_table(max_positions, head_dim, theta)

    def rope(self, q: Floats, k: Floats, positions: Ints, table: Floats) -> None:
        checks.check_rope(q, k, positions, table)
        half = table.shape[1] // 2
        turns = table[positions][:, None, :]
        cosines, sines = turns[..., :half], turns[..., half:]
        for x in (q, k):
            low, high = x[..., :half], x[..., half:]
            turned = low * sines
            low *= cosines
            low -= high * sines
            high *= cosines
            high += turned

    def silu_mul(self, gate_up: Floats) -> Floats:
        checks.check_gate_up(gate_up)
        width = gate_up.shape[1] // 2
        gate, up = gate_up[:, :width], gate_up[:, width:]
        out = np.minimum(
            -gate, np.float32(88)
        )  # exp(89) is more than float32 holds; exp(88) is as good as infinity
        np.exp(out, out=out)
        out += 1
        np.divide(gate, out, out=out)
        out *= up
        return cast(Floats, out)

    def new_pool(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Dtype | None = None
    ) -> KvPool:
        shape = (2, num_blocks, block_size, num_kv_heads, head_dim)
        if dtype in (None, "float32"):
            return KvPool(np.zeros(shape, np.float32), None, "float32")
        if dtype == "int8":
            scales = np.zeros((2, num_blocks, num_kv_heads, block_size), np.float32)
            return KvPool(np.zeros(shape, np.int8), scales, "int8")
        raise ShapeError(f"new_pool: dtype {dtype!r}; the CPU holds KV in float32 or int8")

    def append_kv(self, pool: KvPool, k: Floats, v: Floats, slots: Ints) -> None:
        checks.check_append(pool, k, v, slots)
        slots = np.asarray(slots)
        if slots.size and slots.min() < 0:
            taken = slots >= 0
            k, v, slots = k[taken], v[taken], slots[taken]
        blocks, offsets = np.divmod(slots, pool.block_size)
        self._check_ids("append_kv", blocks, pool.num_blocks)
        for plane, x in enumerate((k, v)):
            if pool.scales is None:
                pool.data[plane, blocks, offsets] = x
            else:
                values, scales = self.quantise(x)
                pool.data[plane, blocks, offsets] = values
                pool.scales[plane, blocks, :, offsets] = scales

    def decode_attention(
        self,
        q: Floats,
        pool: KvPool,
        block_tables: Ints,
        context_lens: Ints,
        *,
        max_context_len: int | None = None,
        window: int | None = None,
    ) -> Floats:
        checks.check_decode(q, pool, block_tables, context_lens)
        checks.check_window("decode_attention", window)
        lens = np.asarray(context_lens, np.int64)
        capacity = block_tables.shape[1] * pool.block_size
        longest = int(lens.max(initial=0)) if max_context_len is None else max_context_len
        checks.check_max_context("decode_attention", max(longest, int(lens.max(initial=0))), capacity)
        out = np.zeros(q.shape, np.float32)
        size = pool.block_size
        oldest = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
        first_blocks = oldest // size
        num_blocks = -(-lens // size) - first_blocks
        block_bytes = 8 * size * pool.num_kv_heads * pool.head_dim
        for group in _groups(num_blocks, max(1, _GROUP_BYTES // block_bytes)):
            width = int(num_blocks[group[-1]])
            columns = first_blocks[group, None] + np.minimum(np.arange(width), num_blocks[group, None] - 1)
            ids = block_tables[group[:, None], columns]
            self._check_ids("decode_attention", ids, pool.num_blocks)
            begin = oldest[group] - first_blocks[group] * size
            end = lens[group] - first_blocks[group] * size
            out[group] = self._decode(q[group], pool, ids, begin, end)
        return out

    def prefill_attention(
        self, q: Floats, pool: KvPool, block_table: Ints, context_len: int, *, window: int | None = None
    ) -> Floats:
        checks.check_prefill(q, pool, block_table, context_len)
        checks.check_window("prefill_attention", window)
        num_tokens, num_heads, head_dim = q.shape
        kv_heads, size = pool.num_kv_heads, pool.block_size
        first = 0 if window is None else max(0, context_len + 1 - window) // size * size
        end = context_len + num_tokens
        ids = np.asarray(block_table)[None, first // size : -(-end // size)]
        self._check_ids("prefill_attention", ids, pool.num_blocks)
        keys, values = self._gather(pool, 0, ids)[0], self._gather(pool, 1, ids)[0]
        scales = (
            None if pool.scales is None else [self._gather_scales(pool, plane, ids)[0] for plane in (0, 1)]
        )
        grouped = q.reshape(num_tokens, kv_heads, -1, head_dim).transpose(1, 2, 0, 3) * np.float32(
            head_dim**-0.5
        )
        out = np.empty((num_tokens, num_heads, head_dim), np.float32)
        shaped = out.reshape(num_tokens, kv_heads, -1, head_dim)
        for start in range(0, num_tokens, _QUERY_TILE):
            stop = min(start + _QUERY_TILE, num_tokens)
            begin = 0 if window is None else max(0, context_len + start + 1 - window - first)
            limit = context_len + stop - first
            tile = np.ascontiguousarray(grouped[:, :, start:stop])
            flat = tile.reshape(kv_heads, -1, head_dim)
            scores = self._workspace.take("scores", (kv_heads, flat.shape[1], limit - begin))
            np.matmul(flat, keys[begin:limit].transpose(1, 2, 0), out=scores)
            if scales is not None:
                scores *= scales[0][:, None, begin:limit]
            by_token = scores.reshape(kv_heads, -1, stop - start, limit - begin)
            _mask_causal(by_token, context_len + start - first - begin, window)
            sums = _exponentials(scores)
            if scales is not None:
                scores *= scales[1][:, None, begin:limit]
            result = np.matmul(scores, values[begin:limit].transpose(1, 0, 2))
            result /= sums
            shaped[start:stop] = result.reshape(kv_heads, -1, stop - start, head_dim).transpose(2, 0, 1, 3)
        return out

    def contiguous_decode_attention(
        self, q: Floats, k: Floats, v: Floats, context_lens: Ints, *, max_context_len: int | None = None
    ) -> Floats:
        checks.check_contiguous(q, k, v, context_lens)
        lens = np.asarray(context_lens, np.int64)
        longest = int(lens.max(initial=0)) if max_context_len is None else max_context_len
        longest = max(longest, int(lens.max(initial=0)))
        checks.check_max_context("contiguous_decode_attention", longest, k.shape[1])
        out = np.zeros(q.shape, np.float32)
        # Keys and values are read where they lie, so there is nothing to gain from taking sequences together.
        for i in np.flatnonzero(lens):
            own = slice(i, i + 1)
            scores = self._workspace.take("scores", (1, k.shape[2], q.shape[1] // k.shape[2], int(lens[i])))
            begin, end = np.zeros(1, np.int64), lens[own]
            out[own] = _attend(q[own], k[own, : lens[i]], v[own, : lens[i]], None, scores, begin, end)
        return out

    def copy_blocks(self, pool: KvPool, src: Ints, dst: Ints) -> None:
        checks.require(src.shape == dst.shape, "copy_blocks", f"{src.shape} sources for {dst.shape} targets")
        self._check_ids("copy_blocks", np.concatenate([src, dst]), pool.num_blocks)
        for array in (pool.data, pool.scales):
            if array is not None:
                array[:, dst] = array[:, src]

    def gather_blocks(self, pool: KvPool, ids: Ints) -> KvPool:
        self._check_ids("gather_blocks", ids, pool.num_blocks)
        scales = None if pool.scales is None else np.take(pool.scales, ids, axis=1)
        return KvPool(np.take(pool.data, ids, axis=1), scales, pool.dtype)

    def scatter_blocks(self, pool: KvPool, ids: Ints, blocks: KvPool) -> None:
        checks.check_same_kind("scatter_blocks", pool, blocks, len(ids))
        self._check_ids("scatter_blocks", ids, pool.num_blocks)
        pool.data[:, ids] = blocks.data
        if pool.scales is not None:
            pool.scales[:, ids] = blocks.scales

    def quantise(self, x: Floats, dtype: Dtype = "int8", scale: Floats | None = None) -> tuple[Int8s, Floats]:
        if dtype != "int8" or scale is not None:
            raise ShapeError(f"quantise: dtype {dtype!r}; the CPU makes int8, with scales of its own")
        scales = (np.maximum(x.max(axis=-1), -x.min(axis=-1)) / np.float32(127)).astype(np.float32)
        inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
        steps = np.rint(np.nan_to_num(x * inverse[..., None]))
        return np.clip(steps, -127, 127).astype(np.int8), scales

    def dequantise(self, values: Int8s, scales: Floats) -> Floats:
        checks.require(
            scales.shape == values.shape[:-1],
            "dequantise",
            f"{values.shape} values with {scales.shape} scales",
        )
        return np.multiply(values, scales[..., None], dtype=np.float32)

    def _decode(
        self, q: Floats, pool: KvPool, ids: Ints, begin: NDArray[np.int64], end: NDArray[np.int64]
    ) -> Floats:
        """Sequences of one group: tokens [begin, end) of the blocks ids[b, width]."""
        keys, values = self._gather(pool, 0, ids), self._gather(pool, 1, ids)
        scales = None
        if pool.scales is not None:
            scales = (self._gather_scales(pool, 0, ids), self._gather_scales(pool, 1, ids))
        shape = (len(ids), pool.num_kv_heads, q.shape[1] // pool.num_kv_heads, keys.shape[1])
        return _attend(q, keys, values, scales, self._workspace.take("scores", shape), begin, end)

    def _gather(self, pool: KvPool, plane: int, ids: Ints) -> Floats:
        """Keys (plane 0) or values of blocks ids[b, width], as float32 [b, tokens, kvh, d]."""
        shape = (*ids.shape, *pool.data.shape[2:])
        name = ("keys", "values")[plane]
        found = self._workspace.take(name, shape)
        if pool.dtype == "int8":
            narrow = self._workspace.take("narrow", shape, np.int8)
            np.take(
                pool.data[plane], ids, axis=0, out=narrow, mode="clip"
            )  # checked; "raise" would copy twice
            np.copyto(found, narrow)
        else:
            np.take(pool.data[plane], ids, axis=0, out=found, mode="clip")
        return found.reshape(len(ids), -1, *pool.data.shape[3:])

    def _gather_scales(self, pool: KvPool, plane: int, ids: Ints) -> Floats:
        """[b, kvh, tokens]."""
        assert pool.scales is not None
        found = np.take(pool.scales[plane], ids, axis=0)
        return cast(Floats, found.transpose(0, 2, 1, 3).reshape(len(ids), pool.num_kv_heads, -1))

    @staticmethod
    def _check_ids(operation: str, ids: NDArray[np.integer], num_blocks: int) -> None:
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < num_blocks:
            raise ShapeError(
                f"{operation}: block ids {ids.min()} to {ids.max()}; the pool has blocks 0 to {num_blocks - 1}"
            )


def rope_table(max_positions: int, head_dim: int, theta: float) -> Floats:
    """As `Ops.rope_table`: angles in float64, so that a position of a million is still exact to float32."""
    half = head_dim // 2
    angles = np.arange(max_positions)[:, None] * theta ** (-np.arange(half) / half)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _groups(sizes: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Sequences in groups by ascending size, none empty: little padding, at most `most` with it."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    start = int(np.searchsorted(ordered, 1))
    while start < len(order):
        stop, total = start, 0
        while stop < len(order):
            total += int(ordered[stop])
            padded = int(ordered[stop]) * (stop + 1 - start)
            if stop > start and (padded > most or padded > _GROUP_PADDING * total):
                break
            stop += 1
        yield order[start:stop]
        start = stop


def _attend(
    q: Floats,
    keys: Floats,
    values: Floats,
    scales: tuple[Floats, Floats] | None,
    scores: Floats,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Floats:
    """Attend from q[b, h, d] to tokens [begin, end) of keys and values [b, tokens, kvh, d].

    scores: room for them, [b, kvh, group, tokens]. Values outside [begin, end) are overwritten.
    """
    batch, num_heads, head_dim = q.shape
    grouped = q.reshape(batch, keys.shape[2], -1, head_dim) * np.float32(head_dim**-0.5)
    np.matmul(grouped, keys.transpose(0, 2, 3, 1), out=scores)
    if scales is not None:
        scores *= scales[0][:, :, None, :]
    tokens = keys.shape[1]
    for i, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if first > 0:
            scores[i, :, :, :first] = -np.inf
            values[i, :first] = 0  # what lies there may be anything, and 0 times NaN is NaN
        if last < tokens:
            scores[i, :, :, last:] = -np.inf
            values[i, last:] = 0
    sums = _exponentials(scores)
    if scales is not None:
        scores *= scales[1][:, :, None, :]
        for i, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
            scores[i, :, :, :first] = 0
            scores[i, :, :, last:] = 0
    out = np.matmul(scores, values.transpose(0, 2, 1, 3))
    out /= sums
    return out.reshape(batch, num_heads, head_dim)


def _mask_causal(scores: Floats, first: int, window: int | None) -> None:
    """scores[..., n, keys]: query i sees keys up to `first` + i, of a window the latest of them."""
    num_queries, num_keys = scores.shape[-2:]
    queries = first + np.arange(num_queries)[:, None]
    hidden = np.arange(first + 1, num_keys) > queries
    np.copyto(scores[..., first + 1 :], -np.inf, where=hidden)
    if window is not None:
        np.copyto(scores, -np.inf, where=np.arange(num_keys) <= queries - window)


def _exponentials(scores: Floats) -> Floats:
    """Turn scores[..., keys] into weights, in place, relative to the greatest; return their sums [..., 1]."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return cast(Floats, scores.sum(axis=-1, keepdims=True))
