"""Decode attention launched: contexts split among blocks of threads, and the parts merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwbackend.kernels.launcher import NULL, Launcher, blocks_of, score_scale
from hwbackend.kernels.layout import token_stride
from hwbackend.kernels.splits import plan_splits
from hwbackend.ops import Array

_SOURCE = "decode_attention"


@dataclass(frozen=True, eq=False, slots=True)
class CacheReads:
    """A KV cache as the kernel reads it: through block tables, or a contiguous one, which has none.

    planes        keys, values, and the scales of each
    table_stride  blocks of a row of the tables; contiguous: tokens that a sequence has room for
    defines       macros of head size, storage and block size (0: contiguous)
    """

    planes: tuple[Any, ...]
    tables: Any
    table_stride: int
    num_kv_heads: int
    defines: Mapping[str, int]


def launch_decode(
    launcher: Launcher, q: Array, cache: CacheReads, context_lens: Array, seen: int, window: int | None
) -> Array:
    """q[b, h, d] over contexts of which at most `seen` tokens are read -> [b, h, d]."""
    batch, num_heads, head_dim = q.shape
    group = num_heads // cache.num_kv_heads
    rows = 8 if group <= 8 else 16
    columns = cache.num_kv_heads * blocks_of(group, rows)
    defines = {**cache.defines, "ROWS": rows}
    block_size = defines["BLOCK_SIZE"] or None
    splits = plan_splits(batch * columns, seen, block_size, launcher.runtime.num_multiprocessors)
    out = launcher.empty(q.shape)
    parts = (NULL, NULL)
    if splits.num_splits > 1:
        shape = (batch, num_heads, splits.num_splits)
        xp = launcher.xp
        parts = (xp.empty((*shape, head_dim), np.float32), xp.empty((*shape, 2), np.float32))
    sizes = (
        num_heads,
        cache.num_kv_heads,
        token_stride(_SOURCE, q),
        cache.table_stride,
        splits.split_tokens,
        window or 0,
    )
    args = (out, *parts, q, *cache.planes, cache.tables, context_lens, *map(np.int32, sizes))
    launcher.launch(
        _SOURCE,
        "decode_attention",
        (splits.num_splits, columns, batch),
        128,
        (*args, score_scale(head_dim)),
        shared_bytes=splits.table_bytes,
        **defines,
    )
    if splits.num_splits > 1:
        merge = map(np.int32, (splits.num_splits, splits.split_tokens, window or 0))
        args = (out, *parts, context_lens, *merge)
        launcher.launch(_SOURCE, "merge_splits", (num_heads, batch), head_dim, args, **defines)
    return out
