"""The operations on a CUDA device: shapes checked, kernels launched by a `Runtime`."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from hwbackend.kernels import checks
from hwbackend.kernels.cupy_runtime import CupyRuntime
from hwbackend.kernels.decode_launch import CacheReads, launch_decode
from hwbackend.kernels.launch import Runtime
from hwbackend.kernels.launcher import NULL, STORAGE, Launcher, blocks_of, score_scale
from hwbackend.kernels.layout import check_head_dim, check_whole, row_stride, token_stride
from hwbackend.kernels.numpy_ops import rope_table
from hwbackend.kernels.sources import DTYPE_CODES
from hwbackend.ops import Array, Dtype, KvPool, ShapeError

_QUERY_TILE: Final = 64
_KEY_TILE: Final = 64


class CudaOps:
    """`hwbackend.ops.Ops` on a CUDA device, on the current stream.

    Arrays are contiguous, but that tokens of q, k and v may lie apart (as the slices of one q-k-v product do).
    Nothing here waits for the device, unless `max_context_len` is left out.
    """

    def __init__(self, runtime: Runtime | None = None, dtype: Dtype = "float16") -> None:
        """Take the current device, through CuPy, where no runtime is given.

        float16 is the dtype that CuPy computes with too; bfloat16 (uint16 there) is for these operations alone.
        """
        if dtype not in ("float16", "bfloat16"):
            raise ShapeError(f"CudaOps: dtype {dtype!r}; the kernels compute in float16 or bfloat16")
        self.dtype: Dtype = dtype
        self._runtime: Runtime = runtime or CupyRuntime()
        self._xp = self._runtime.xp
        self._launcher = Launcher(self._runtime, dtype)

    def to_values(self, x: Array) -> Array:
        xp = self._xp
        if self.dtype == "float16":
            return xp.asarray(x, dtype=np.float16)
        bits = xp.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return xp.where(xp.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))

    def to_floats(self, x: Array) -> Array:
        if self.dtype == "float16":
            return x.astype(np.float32)
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def add(self, x: Array, y: Array) -> None:
        checks.require(x.shape == y.shape, "add", f"{x.shape} and {y.shape}; must be one shape")
        words = checks.contiguous_words("add", x)
        checks.contiguous_words("add", y)
        blocks = min(blocks_of(words, 256), 16 * self._runtime.num_multiprocessors)
        self._launcher.launch("elementwise", "add", (blocks,), 256, (x, y, np.int64(words)))

    def matmul(self, x: Array, w: Array, out: Array | None = None) -> Array:
        checks.check_matmul(x, w)
        if out is None:
            out = self._launcher.empty((x.shape[0], w.shape[1]))
        check_whole("matmul", x, w, out)
        if out.size:
            self._runtime.gemm(x, w, out, self.dtype)
        return out

    def matmul_8bit(self, x: Array, w: Array) -> Array:
        checks.check_matmul(x, w.T)
        check_whole("matmul_8bit", x, w)
        checks.require(
            x.shape[1] % 4 == 0 and w.shape[0] % 4 == 0,
            "matmul_8bit",
            f"{x.shape} by {w.shape}; k and n by 4",
        )
        out = self._xp.empty((x.shape[0], w.shape[0]), np.int32)
        if out.size:
            self._runtime.gemm_8bit(x, w, out)
        return out

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        checks.check_norm(x, weight)
        rows, width = x.shape
        checks.require(width % 8 == 0, "rms_norm", f"rows of {width}; must be a multiple of 8")
        check_whole("rms_norm", weight)
        stride = row_stride("rms_norm", x)
        out = self._launcher.empty((rows, width))
        args = (out, x, weight, np.int32(width // 8), np.int32(stride), np.float32(eps))
        self._launcher.launch("elementwise", "rms_norm", (rows,), 256, args)
        return out

    def rope_table(self, max_positions: int, head_dim: int, theta: float) -> Array:
        return self._xp.asarray(rope_table(max_positions, head_dim, theta))

    def rope(self, q: Array, k: Array, positions: Array, table: Array) -> None:
        checks.check_rope(q, k, positions, table)
        strides = (np.int32(token_stride("rope", q)), np.int32(token_stride("rope", k)))
        heads = (np.int32(q.shape[1]), np.int32(k.shape[1]), np.int32(q.shape[2]))
        args = (q, k, self._ids(positions), table, *heads, *strides)
        self._launcher.launch("elementwise", "rope", (q.shape[0],), 256, args)

    def silu_mul(self, gate_up: Array) -> Array:
        checks.check_gate_up(gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        checks.require(width % 8 == 0, "silu_mul", f"rows of {width}; must be a multiple of 8")
        check_whole("silu_mul", gate_up)
        out = self._launcher.empty((rows, width))
        # The second grid dimension ends at 65,535 rows.
        for start in range(0, rows, 65535):
            part = slice(start, min(start + 65535, rows))
            grid = (blocks_of(width // 8, 256), part.stop - part.start)
            self._launcher.launch(
                "elementwise", "silu_mul", grid, 256, (out[part], gate_up[part], np.int32(width // 8))
            )
        return out

    def new_pool(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Dtype | None = None
    ) -> KvPool:
        dtype = dtype or self.dtype
        if dtype not in (self.dtype, "int8", "fp8"):
            raise ShapeError(f"new_pool: dtype {dtype!r}; must be {self.dtype}, int8 or fp8")
        check_head_dim("new_pool", head_dim)
        scales = None
        if dtype == "int8":
            scales = self._xp.zeros((2, num_blocks, num_kv_heads, block_size), np.float32)
        elif dtype == "fp8":
            scales = self._xp.ones(2, np.float32)
        shape = (2, num_blocks, block_size, num_kv_heads, head_dim)
        return KvPool(self._xp.zeros(shape, STORAGE[dtype]), scales, dtype)

    def append_kv(self, pool: KvPool, k: Array, v: Array, slots: Array) -> None:
        checks.check_append(pool, k, v, slots)
        num_tokens, heads, head_dim = k.shape
        strides = (
            np.int32(token_stride("append_kv", k)),
            np.int32(token_stride("append_kv", v)),
        )
        args = (*_planes(pool), k, v, self._ids(slots), np.int32(num_tokens), np.int32(heads), *strides)
        grid = (blocks_of(2 * num_tokens * heads, 128 * 8 // head_dim),)
        self._launcher.launch("kv_cache", "append_kv", grid, 128, args, **self._pool_defines(pool))

    def decode_attention(
        self,
        q: Array,
        pool: KvPool,
        block_tables: Array,
        context_lens: Array,
        *,
        max_context_len: int | None = None,
        window: int | None = None,
    ) -> Array:
        checks.check_decode(q, pool, block_tables, context_lens)
        checks.check_window("decode_attention", window)
        longest = self._longest(context_lens) if max_context_len is None else max_context_len
        capacity = block_tables.shape[1] * pool.block_size
        checks.check_max_context("decode_attention", longest, capacity)
        seen = longest if window is None else min(longest, window)
        cache = CacheReads(
            planes=_planes(pool),
            tables=self._ids(block_tables),
            table_stride=block_tables.shape[1],
            num_kv_heads=pool.num_kv_heads,
            defines=self._pool_defines(pool),
        )
        return launch_decode(self._launcher, q, cache, self._ids(context_lens), seen, window)

    def contiguous_decode_attention(
        self, q: Array, k: Array, v: Array, context_lens: Array, *, max_context_len: int | None = None
    ) -> Array:
        operation = "contiguous_decode_attention"
        checks.check_contiguous(q, k, v, context_lens)
        check_whole(operation, k, v)
        check_head_dim(operation, k.shape[3])
        longest = self._longest(context_lens) if max_context_len is None else max_context_len
        checks.check_max_context(operation, longest, k.shape[1])
        cache = CacheReads(
            planes=(k, v, NULL, NULL),
            tables=NULL,
            table_stride=k.shape[1],
            num_kv_heads=k.shape[2],
            defines={"HEAD_DIM": k.shape[3], "KV": DTYPE_CODES[self.dtype], "BLOCK_SIZE": 0},
        )
        return launch_decode(self._launcher, q, cache, self._ids(context_lens), longest, None)

    def prefill_attention(
        self, q: Array, pool: KvPool, block_table: Array, context_len: int, *, window: int | None = None
    ) -> Array:
        checks.check_prefill(q, pool, block_table, context_len)
        checks.check_window("prefill_attention", window)
        num_tokens, num_heads, head_dim = q.shape
        out = self._launcher.empty(q.shape)
        sizes = (num_tokens, context_len, num_heads, pool.num_kv_heads)
        args = (
            out,
            q,
            *_planes(pool),
            self._ids(block_table),
            *map(np.int32, sizes),
            np.int32(token_stride("prefill_attention", q)),
            np.int32(window or 0),
            score_scale(head_dim),
        )
        shared_bytes = 2 * 2 * _KEY_TILE * head_dim * 2
        grid = (blocks_of(num_tokens, _QUERY_TILE), num_heads)
        defines = self._pool_defines(pool)
        self._launcher.launch(
            "prefill_attention", "prefill_attention", grid, 128, args, shared_bytes=shared_bytes, **defines
        )
        return out

    def copy_blocks(self, pool: KvPool, src: Array, dst: Array) -> None:
        checks.require(src.shape == dst.shape, "copy_blocks", f"{src.shape} sources for {dst.shape} targets")
        self._move(pool, pool, src, dst)

    def gather_blocks(self, pool: KvPool, ids: Array) -> KvPool:
        shape = (2, len(ids), *pool.data.shape[2:])
        scales = pool.scales
        if pool.dtype == "int8":
            scales = self._xp.empty((2, len(ids), pool.num_kv_heads, pool.block_size), np.float32)
        blocks = KvPool(self._xp.empty(shape, pool.data.dtype), scales, pool.dtype)
        self._move(pool, blocks, ids, None)
        return blocks

    def scatter_blocks(self, pool: KvPool, ids: Array, blocks: KvPool) -> None:
        checks.check_same_kind("scatter_blocks", pool, blocks, len(ids))
        self._move(blocks, pool, None, ids)

    def quantise(self, x: Array, dtype: Dtype = "int8", scale: Array | None = None) -> tuple[Array, Array]:
        checks.require(
            dtype in ("int8", "fp8") and (scale is None) == (dtype == "int8"),
            "quantise",
            f"dtype {dtype!r} with{'out' if scale is None else ''} a scale; int8 makes its own, fp8 needs one",
        )
        check_whole("quantise", x)
        out = self._launcher.empty(x.shape, dtype)
        scales = self._xp.empty(x.shape[:-1], np.float32) if scale is None else scale
        self._eight_bit("quantise", (out, scales, x), x.shape, dtype)
        return out, scales

    def dequantise(self, values: Array, scales: Array) -> Array:
        dtype: Dtype = "int8" if values.dtype == np.int8 else "fp8"
        wanted = values.shape[:-1] if dtype == "int8" else (1,)
        checks.require(
            scales.shape == wanted,
            "dequantise",
            f"{values.shape} values with {scales.shape} scales; must be {wanted}",
        )
        check_whole("dequantise", values, scales)
        out = self._launcher.empty(values.shape)
        self._eight_bit("dequantise", (out, values, scales), values.shape, dtype)
        return out

    def _eight_bit(
        self, kernel: str, arrays: tuple[Array, ...], shape: tuple[int, ...], dtype: Dtype
    ) -> None:
        check_head_dim(kernel, shape[-1])
        rows = math.prod(shape[:-1])
        defines = {"HEAD_DIM": shape[-1], "KV": DTYPE_CODES[dtype]}
        grid = (blocks_of(rows, 128 * 8 // shape[-1]),)
        self._launcher.launch("quantise", kernel, grid, 128, (*arrays, np.int32(rows)), **defines)

    def _move(
        self, source: KvPool, target: KvPool, source_ids: Array | None, target_ids: Array | None
    ) -> None:
        ids = source_ids if source_ids is not None else target_ids
        assert ids is not None
        pairs = [(source.data, target.data)]
        if source.dtype == "int8":
            pairs.append((source.scales, target.scales))
        for old, new in pairs:
            block_bytes = math.prod(old.shape[2:]) * old.itemsize
            words, rest = divmod(block_bytes, checks.WORD_BYTES)
            checks.require(
                rest == 0, "copy of blocks", f"{block_bytes} bytes a block; must be a multiple of 16"
            )
            args = (
                new,
                old,
                NULL if target_ids is None else self._ids(target_ids),
                NULL if source_ids is None else self._ids(source_ids),
                np.int32(new.shape[1]),
                np.int32(old.shape[1]),
                np.int32(words),
            )
            self._launcher.launch(
                "blocks", "move_blocks", (len(ids), 2, blocks_of(words, 4 * 256)), 256, args
            )

    def _pool_defines(self, pool: KvPool) -> dict[str, int]:
        checks.require(
            pool.dtype in (self.dtype, "int8", "fp8"), "pool", f"{pool.dtype} values with ops of {self.dtype}"
        )
        return {"HEAD_DIM": pool.head_dim, "KV": DTYPE_CODES[pool.dtype], "BLOCK_SIZE": pool.block_size}

    def _ids(self, ids: Array) -> Array:
        return self._xp.ascontiguousarray(ids, dtype=np.int32)

    def _longest(self, context_lens: Array) -> int:
        return int(context_lens.max()) if context_lens.size else 0


def _planes(pool: KvPool) -> tuple[Any, ...]:
    """Addresses of keys, values and their scales."""
    scales = (NULL, NULL) if pool.scales is None else (pool.scales[:1], pool.scales[1:])
    return pool.data[0], pool.data[1], *scales
