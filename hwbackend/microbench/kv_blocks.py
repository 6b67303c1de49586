"""What an engine does to KV blocks besides attention: append, copy, copy-on-write, gather, scatter."""

from __future__ import annotations

import numpy as np

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, dtype_of, filled, number, too_large, value_bytes
from hwbackend.microbench.kv_pool import make_kv
from hwbackend.ops import KvPool


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
        kv_heads, dim = number(axes, "kv_heads"), number(axes, "head_dim")
        kv = make_kv(
            device,
            np.full(2 * count, size),
            block_size=size,
            kv_heads=kv_heads,
            head_dim=dim,
            dtype=dtype_of(axes, "kv_dtype"),
        )
        new = filled(device, (count, kv_heads, dim), device.ops.dtype)
        return Prepared(
            tuple(_call(device, str(axes["op"]), kv.pool, table[:, 0], new) for table in kv.tables)
        )

    def _block_bytes(self, axes: Axes) -> float:
        heads = number(axes, "kv_heads") * number(axes, "head_dim")
        return 2.0 * number(axes, "block_size") * heads * value_bytes(axes, "kv_dtype")


def _call(device: Device, op: str, pool: KvPool, blocks: Array, new: Array) -> Call:
    """Half of the blocks are read, half written."""
    ops, count = device.ops, len(new)
    source, target = blocks[:count].copy(), blocks[count:].copy()
    slots = target * pool.block_size
    if op == "append":
        return lambda: ops.append_kv(pool, new, new, slots)
    if op == "copy":
        return lambda: ops.copy_blocks(pool, source, target)
    if op == "gather":
        return lambda: ops.gather_blocks(pool, source)
    if op == "scatter":
        piece = ops.gather_blocks(pool, source)
        return lambda: ops.scatter_blocks(pool, target, piece)

    def copy_on_write() -> None:
        ops.copy_blocks(pool, source, target)
        ops.append_kv(pool, new, new, slots)

    return copy_on_write
