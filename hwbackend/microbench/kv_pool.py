"""A pool of KV blocks and tables into it, as the attention benchmarks need them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.microbench.bench import filled, turns
from hwbackend.ops import VALUE_BYTES, Dtype, KvPool


@dataclass(frozen=True)
class PagedKv:
    """A pool and block tables into it, one [sequences, blocks each] a turn.

    The tables of all turns together cover more than the last cache holds. Blocks are handed out in random order, as
    an engine's are after a while.
    """

    pool: KvPool
    tables: tuple[Array, ...]


def make_kv(
    device: Device, lengths: NDArray[np.int64], *, block_size: int, kv_heads: int, head_dim: int, dtype: Dtype
) -> PagedKv:
    """Lay out `lengths` tokens, one entry a sequence."""
    blocks = -(-lengths // block_size)
    each = int(blocks.sum())
    count = turns(device, each * 2 * block_size * kv_heads * head_dim * VALUE_BYTES[dtype])
    order = np.random.default_rng(1).permutation(count * each).astype(np.int32)
    tables = []
    for turn in range(count):
        table = np.zeros((len(lengths), int(blocks.max())), dtype=np.int32)
        mine = iter(order[turn * each : (turn + 1) * each])
        for row, needed in zip(table, blocks, strict=True):
            row[:needed] = [next(mine) for _ in range(needed)]
        tables.append(device.to_device(table))
    empty: KvPool = device.ops.new_pool(1, block_size, kv_heads, head_dim, dtype)
    data = filled(device, (2, count * each, block_size, kv_heads, head_dim), dtype)
    scales = None
    if empty.scales is not None:
        per_block = empty.scales.ndim > 1
        shape = (2, count * each, *empty.scales.shape[2:]) if per_block else empty.scales.shape
        scales = device.xp.full(shape, 0.01, dtype="float32")
    return PagedKv(replace(empty, data=data, scales=scales), tuple(tables))


def kv_bytes(device: Device, tokens: int, kv_heads: int, head_dim: int, dtype: Dtype) -> float:
    """Bytes of such a pool, all turns of it."""
    once = 2.0 * tokens * kv_heads * head_dim * VALUE_BYTES[dtype]
    return once * turns(device, once)
