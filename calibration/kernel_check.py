"""The operations of a device against float64 references, on random data, shape by shape; NaN fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.kernels import reference
from hwbackend.ops import KvPool

Float64 = NDArray[np.float64]

TOLERANCE: Final = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Greatest error over the greatest magnitude: some roundings of the dtype (2^-24, 2^-11, 2^-8), one after another."""
_EPS, _THETA = 1e-5, 10_000.0
_HEADS: Final = ((8, 8), (16, 4), (32, 8))  # query and KV heads
_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """One operation at one shape. `error` is relative to the greatest magnitude; infinite where there is a NaN."""

    operation: str
    shape: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def check_kernels(device: Device, seed: int = 0) -> Iterator[KernelVerdict]:
    """Check one operation after the other."""
    check = _Check(device, np.random.default_rng(seed))
    for head_dim in (64, 128):
        for heads, kv_heads in _HEADS:
            yield from check.attention(heads, kv_heads, head_dim)
    yield from check.products()
    yield from check.elementwise()
    yield from check.blocks()


class _Check:
    def __init__(self, device: Device, rng: np.random.Generator) -> None:
        self.device = device
        self.ops = device.ops
        self.rng = rng
        self.tolerance = TOLERANCE[device.ops.dtype]

    def attention(self, heads: int, kv_heads: int, dim: int) -> Iterator[KernelVerdict]:
        lens = np.array([1, 15, 16, 17, 130, 257], dtype=np.int32)
        pool, tables, data = self._pool(lens, kv_heads, dim)
        shape = f"heads {heads}/{kv_heads} x {dim}"
        q, q_ref = self._values(len(lens), heads, dim)
        found = self.ops.decode_attention(q, pool, self._put(tables), self._put(lens), max_context_len=257)
        yield self._verdict(
            "decode_attention", shape, found, reference.decode_attention(q_ref, data, tables, lens)
        )
        for new, past in ((1, 0), (65, 0), (64, 66), (130, 127)):
            q, q_ref = self._values(new, heads, dim)
            table = tables[-1]
            found = self.ops.prefill_attention(q, pool, self._put(table), past)
            expected = reference.prefill_attention(q_ref, data, table, past)
            yield self._verdict("prefill_attention", f"{shape}, {new} on {past}", found, expected)

    def products(self) -> Iterator[KernelVerdict]:
        for m, k, n in ((1, 256, 512), (17, 512, 1024), (256, 1024, 768)):
            x, x_ref = self._values(m, k)
            w, w_ref = self._values(k, n)
            yield self._verdict("matmul", f"{m} x {k} x {n}", self.ops.matmul(x, w), x_ref @ w_ref)

    def elementwise(self) -> Iterator[KernelVerdict]:
        rows, width, heads, dim = 33, 512, 8, 64
        x, x_ref = self._values(rows, width)
        weight, weight_ref = self._values(width)
        expected = reference.rms_norm(x_ref, weight_ref, _EPS)
        yield self._verdict("rms_norm", f"{rows} x {width}", self.ops.rms_norm(x, weight, _EPS), expected)
        expected = reference.silu_mul(x_ref)
        yield self._verdict("silu_mul", f"{rows} x {width}", self.ops.silu_mul(x), expected)
        (q, q_ref), (k, k_ref) = self._values(rows, heads, dim), self._values(rows, heads // 2, dim)
        positions = self.rng.integers(0, 4096, rows).astype(np.int32)
        self.ops.rope(q, k, self._put(positions), self.ops.rope_table(4096, dim, _THETA))
        for name, found, before in (("q", q, q_ref), ("k", k, k_ref)):
            yield self._verdict(
                "rope", f"{name} {rows} x {dim}", found, reference.rope(before, positions, _THETA)
            )

    def blocks(self) -> Iterator[KernelVerdict]:
        pool = self.ops.new_pool(12, _BLOCK, 4, 64)
        k, k_ref = self._values(50, 4, 64)
        v, v_ref = self._values(50, 4, 64)
        slots = self.rng.permutation(8 * _BLOCK)[:50].astype(np.int32)
        self.ops.append_kv(pool, k, v, self._put(slots))
        expected = np.zeros((2, 12 * _BLOCK, 4, 64))
        expected[0, slots], expected[1, slots] = k_ref, v_ref
        expected = expected.reshape(2, 12, _BLOCK, 4, 64)
        yield self._verdict("append_kv", "50 tokens", pool.data, expected)
        source, target = np.arange(4, dtype=np.int32), np.arange(8, 12, dtype=np.int32)
        self.ops.copy_blocks(pool, self._put(source), self._put(target))
        expected[:, target] = expected[:, source]
        yield self._verdict("copy_blocks", "4 blocks", pool.data, expected)
        gathered = self.ops.gather_blocks(pool, self._put(source))
        yield self._verdict("gather_blocks", "4 blocks", gathered.data, expected[:, source])
        self.ops.scatter_blocks(pool, self._put(target[::-1].copy()), gathered)
        expected[:, target[::-1]] = expected[:, source]
        yield self._verdict("scatter_blocks", "4 blocks", pool.data, expected)

    def _pool(
        self, lens: NDArray[np.int32], kv_heads: int, dim: int
    ) -> tuple[KvPool, NDArray[np.int32], Float64]:
        """A pool with the sequences' tokens in blocks of random places."""
        blocks = -(-lens // _BLOCK)
        order = self.rng.permutation(int(blocks.sum())).astype(np.int32)
        tables = np.zeros((len(lens), int(blocks.max())), dtype=np.int32)
        at = np.concatenate([[0], np.cumsum(blocks)])
        for row, (begin, end) in enumerate(pairwise(at)):
            tables[row, : end - begin] = order[begin:end]
        pool = self.ops.new_pool(len(order), _BLOCK, kv_heads, dim)
        data = np.zeros((2, len(order), _BLOCK, kv_heads, dim))
        slots = np.arange(len(order) * _BLOCK, dtype=np.int32)
        k, data_k = self._values(slots.size, kv_heads, dim)
        v, data_v = self._values(slots.size, kv_heads, dim)
        self.ops.append_kv(pool, k, v, self._put(slots))
        data[0], data[1] = (part.reshape(data.shape[1:]) for part in (data_k, data_v))
        return pool, tables, data

    def _values(self, *shape: int) -> tuple[Array, Float64]:
        """Random values as the device holds them, and exactly those in float64."""
        drawn = self.rng.standard_normal(shape).astype(np.float32)
        held = self.ops.to_values(self.device.to_device(drawn))
        return held, self._floats(held)

    def _floats(self, array: Array) -> Float64:
        floats: Float64 = self.device.to_host(self.ops.to_floats(array)).astype(np.float64)
        return floats

    def _put(self, array: NDArray[np.int32]) -> Array:
        return self.device.to_device(array)

    def _verdict(self, operation: str, shape: str, found: Array, expected: Float64) -> KernelVerdict:
        error = np.abs(self._floats(found) - expected).max() / np.abs(expected).max()
        return KernelVerdict(operation, shape, float(error) if np.isfinite(error) else np.inf, self.tolerance)
