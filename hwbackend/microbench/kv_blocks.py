"""What an engine does to KV blocks besides attention: append, copy, copy-on-write, gather, scatter."""

from __future__ import annotations

import numpy as np

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import FLOAT_BYTES, Axes, filled, number, too_large
from hwbackend.microbench.gemm import array_dtype
from hwbackend.microbench.kv_pool import KvPool, make_pool


class KvBlocks:
    """Work on blocks, by op; all of one layer.

    append          write the keys and values of `count` new tokens into their slots
    copy            copy `count` blocks within the pool
    copy_on_write   copy a block that is shared, then write one token into the copy, `count` times in one go
    gather          read `count` blocks into one contiguous piece, as a transfer to the host needs it
    scatter         write such a piece back into blocks
    """

    name = "kv_blocks"
    axes = ("op", "count", "kv_dtype", "kv_heads", "head_dim", "block_size")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(
            device, 4 * self._block_bytes(axes) * number(axes, "count") + 4 * device.identity.cache_bytes
        )

    def work(self, axes: Axes) -> Work:
        count, block = number(axes, "count"), self._block_bytes(axes)
        token = block / number(axes, "block_size")
        moved = {"append": 2 * token, "copy_on_write": 2 * block + 2 * token}.get(str(axes["op"]), 2 * block)
        return Work(num_bytes=count * moved)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        count, size = number(axes, "count"), number(axes, "block_size")
        kv_heads, dim, dtype = (
            number(axes, "kv_heads"),
            number(axes, "head_dim"),
            array_dtype(str(axes["kv_dtype"])),
        )
        kv = make_pool(
            device, np.full(2 * count, size), block_size=size, kv_heads=kv_heads, head_dim=dim, dtype=dtype
        )
        new = filled(device, (count, kv_heads, dim), dtype)
        piece = filled(device, (2, count, size, kv_heads, dim), dtype)
        calls = tuple(self._call(device, str(axes["op"]), kv, table[:, 0], new, piece) for table in kv.tables)
        return Prepared(calls)

    def _call(self, device: Device, op: str, kv: KvPool, blocks: Array, new: Array, piece: Array) -> Call:
        ops, count, pool = device.ops, len(new), kv.pool
        source, target = blocks[:count].copy(), blocks[count:].copy()
        slots = target.astype("int64") * pool.shape[2]
        if op == "append":
            return lambda: ops.append_kv(pool, new, new, slots)
        if op == "copy":
            return lambda: ops.copy_blocks(pool, source, target)
        if op == "gather":
            return lambda: ops.gather_blocks(pool, source)
        if op == "scatter":
            return lambda: ops.scatter_blocks(pool, source, piece)

        def copy_on_write() -> None:
            ops.copy_blocks(pool, source, target)
            ops.append_kv(pool, new, new, slots)

        return copy_on_write

    def _block_bytes(self, axes: Axes) -> float:
        heads = number(axes, "kv_heads") * number(axes, "head_dim")
        return 2.0 * number(axes, "block_size") * heads * FLOAT_BYTES[str(axes["kv_dtype"])]
