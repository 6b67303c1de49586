"""Causal attention of one sequence's chunk, on top of what is cached of it already."""

from __future__ import annotations

import numpy as np

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, dtype_of, filled, number, too_large
from hwbackend.microbench.kv_pool import kv_bytes, make_kv
from hwbackend.ops import VALUE_BYTES


class PrefillAttention:
    """`isl` new tokens after `past_kv` cached ones; one layer, one sequence a call (batch 1)."""

    name = "prefill_attention"
    axes = ("kv_dtype", "isl", "past_kv", "heads", "kv_heads", "head_dim", "block_size")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        tokens = number(axes, "isl") + number(axes, "past_kv")
        kv_heads, head_dim, dtype = (
            number(axes, "kv_heads"),
            number(axes, "head_dim"),
            dtype_of(axes, "kv_dtype"),
        )
        scores = 4.0 * number(axes, "heads") * number(axes, "isl") * tokens
        return too_large(device, kv_bytes(device, tokens, kv_heads, head_dim, dtype) + scores)

    def work(self, axes: Axes) -> Work:
        new, past, heads = number(axes, "isl"), number(axes, "past_kv"), number(axes, "heads")
        dim, size = number(axes, "head_dim"), VALUE_BYTES[dtype_of(axes, "kv_dtype")]
        area = new * past + new * (new + 1) / 2
        moved = size * dim * (2.0 * new * heads + 2.0 * (past + new) * number(axes, "kv_heads"))
        return Work(num_bytes=moved, flops=4.0 * heads * dim * area)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        new, past, dim = number(axes, "isl"), number(axes, "past_kv"), number(axes, "head_dim")
        kv = make_kv(
            device,
            np.array([new + past]),
            block_size=number(axes, "block_size"),
            kv_heads=number(axes, "kv_heads"),
            head_dim=dim,
            dtype=dtype_of(axes, "kv_dtype"),
        )
        attention = device.ops.prefill_attention
        q = filled(device, (new, number(axes, "heads"), dim), device.ops.dtype)

        def attend(table: Array) -> Call:
            return lambda: attention(q, kv.pool, table, past)

        return Prepared(tuple(attend(table[0]) for table in kv.tables))
