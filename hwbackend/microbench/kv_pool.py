"""A pool of KV blocks and tables into it, as the attention benchmarks need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.microbench.bench import FLOAT_BYTES, filled, turns


@dataclass(frozen=True)
class KvPool:
    """`pool` is [2, blocks, block_size, kv_heads, head_dim]; `tables` one [sequences, blocks each] a turn.

    The tables of all turns together cover more than the last cache holds. Blocks are handed out in random order, as
    an engine's are after a while.
    """

    pool: Array
    tables: tuple[Array, ...]


def make_pool(
    device: Device,
    lengths: NDArray[np.int64],
    *,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    dtype: str,
) -> KvPool:
    """Lay out `lengths` tokens for each sequence."""
    blocks = -(-lengths // block_size)
    each = int(blocks.sum())
    block_bytes = 2 * block_size * kv_heads * head_dim * FLOAT_BYTES[dtype]
    count = turns(device, each * block_bytes)
    order = np.random.default_rng(1).permutation(count * each).astype(np.int32)
    tables = []
    for turn in range(count):
        table = np.zeros((len(lengths), int(blocks.max())), dtype=np.int32)
        mine = iter(order[turn * each : (turn + 1) * each])
        for row, needed in zip(table, blocks, strict=True):
            row[:needed] = [next(mine) for _ in range(needed)]
        tables.append(device.to_device(table))
    pool = filled(device, (2, count * each, block_size, kv_heads, head_dim), dtype)
    return KvPool(pool, tuple(tables))


def pool_bytes(device: Device, tokens: int, kv_heads: int, head_dim: int, dtype: str) -> float:
    """Bytes of such a pool, all turns of it."""
    once = 2.0 * tokens * kv_heads * head_dim * FLOAT_BYTES[dtype]
    return once * turns(device, once)
