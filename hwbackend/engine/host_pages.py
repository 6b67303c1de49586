"""Pages of KV in host memory and in HBM, for real: a page that is not in HBM is copied there before it is read.

A page is a KV block in a group of successive layers, and its number is its place in HBM: there is a place for every
page, and what is in those that `HostPaging` does not count as resident must not be read. So the policy's capacity is
kept by who may be read, not by who has a place.

On a GPU host memory is pinned and beside the device's own; on a CPU the engine's block pool is the host memory, and
HBM is an arena of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.engine.kv_pool import INDEX, KvBlocks
from hwbackend.ops import KvPool
from sim.errors import InvariantError
from sim.model import ModelSpec

Int64 = NDArray[np.int64]


class HostPages:
    """All pages of an engine whose KV blocks are those of `pool`, `groups` to a block."""

    def __init__(self, device: Device, model: ModelSpec, pool: KvBlocks, groups: int) -> None:
        pool.require_plain("kv_access: KV in host memory")
        self.groups = groups
        self.layers_per_group = model.num_layers // groups
        self.hbm = KvBlocks(device, model, pool.num_blocks * groups, pool.block_size, self.layers_per_group)
        self._device = device
        self._pool = pool
        self._apart = device.kind == "cuda"  # host memory is not the pool
        self._there = np.zeros(
            pool.num_blocks * groups, dtype=np.bool_
        )  # by number: whether HBM has the content
        self._block = np.zeros(pool.num_blocks * groups, dtype=np.int64)  # by number: of the pool
        self._host = [self._host_layer(layer) for layer in pool.layers]
        self._side = device.stream() if self._apart else device.main

    @property
    def page_bytes(self) -> int:
        return self.hbm.block_bytes

    def born(self, numbers: Int64, blocks: Int64, resident: NDArray[np.bool_]) -> None:
        """New pages `numbers` [blocks, groups] of the pool's blocks; HBM keeps those marked resident."""
        self._block[numbers] = blocks[:, None]
        if self._apart:
            self.write_back(blocks)
        self._there[numbers[~resident]] = False
        self._copy_on_device(numbers[resident])

    def there(self, numbers: Int64) -> NDArray[np.bool_]:
        return self._there[numbers]

    def keep_only(self, numbers: Int64, resident: NDArray[np.bool_]) -> None:
        """Of these pages only those marked resident may be read from now on."""
        self._there[numbers[~resident]] = False

    def write_back(self, blocks: Int64) -> None:
        """Copy blocks of the pool to host memory where that is not the same."""
        if not self._apart or not blocks.size:
            return
        ids = self._device.to_device(blocks.astype(INDEX))
        for layer, host in zip(self._pool.layers, self._host, strict=True):
            host[:, blocks] = self._device.to_host(self._device.ops.gather_blocks(layer, ids).data)

    def fetch(self, numbers: Int64) -> None:
        """Copy pages from host memory to HBM."""
        blocks, group = self._block[numbers], numbers % self.groups
        for number in np.unique(group).tolist():
            part = group == number
            for within in range(self.layers_per_group):
                source = self._host[number * self.layers_per_group + within][:, blocks[part]]
                self._put(self.hbm.layers[within], numbers[part], source)
        if self._apart:
            self._side.synchronize()
        self._there[numbers] = True

    def renew(self, numbers: Int64) -> None:
        """Make pages in HBM what the engine's blocks are now."""
        if numbers.size:
            self._copy_on_device(numbers)

    def _copy_on_device(self, numbers: Int64) -> None:
        ops = self._device.ops
        group = numbers % self.groups
        for number in np.unique(group).tolist():
            part = numbers[group == number]
            source = self._device.to_device(self._block[part].astype(INDEX))
            target = self._device.to_device(part.astype(INDEX))
            for within in range(self.layers_per_group):
                layer = self._pool.layers[number * self.layers_per_group + within]
                ops.scatter_blocks(self.hbm.layers[within], target, ops.gather_blocks(layer, source))
        self._there[numbers] = True

    def _put(self, layer: KvPool, numbers: Int64, source: Array) -> None:
        """Write content [2, pages, ...] of host memory to places in HBM."""
        if not self._apart:
            layer.data[:, numbers] = source
            return

        def copy() -> None:
            staged = self._device.empty(source.shape, str(layer.data.dtype))
            self._device.copy(staged, np.ascontiguousarray(source), self._side)
            ids = self._device.to_device(numbers.astype(INDEX))
            self._device.ops.scatter_blocks(layer, ids, self.hbm.plain(staged))

        self._side.run(copy)

    def _host_layer(self, layer: KvPool) -> Array:
        if layer.scales is not None:
            raise InvariantError("pages of quantised KV are not made here")
        if not self._apart:
            return layer.data
        data = layer.data
        return self._device.host_buffer(data.nbytes, pinned=True).view(str(data.dtype)).reshape(data.shape)


def tables_by_group(
    group: Int64, sequence: Int64, numbers: Int64, groups: int, count: int
) -> Sequence[tuple[Int64, Int64]]:
    """Block tables [count, most pages] in each group, and how many pages each of `count` sequences reads there.

    The pages come by group, sequence and block.
    """
    tables = []
    for place in range(groups):
        part = group == place
        of = sequence[part]
        pages = np.bincount(of, minlength=count)
        table = np.zeros((count, max(int(pages.max(initial=0)), 1)), dtype=np.int64)
        column = np.arange(of.size) - (np.cumsum(pages) - pages)[of]
        table[of, column] = numbers[part]
        tables.append((table, pages))
    return tables
