"""Transfers between tiers, for real: blocks copied on streams beside the steps, host memory block by block.

A transfer's bytes are those of its payload's blocks over all layers. Copies within HBM of regions that have moved
carry no blocks; whoever runs the step sees the move in the block table and makes it (`device_executor.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device, Event, Stream
from hwbackend.engine.kv_pool import INDEX, KvBlocks
from sim.errors import ConfigError, InvariantError
from sim.kv.allocators.decision import Allocator
from sim.kv.allocators.tiered_paged import TieredPagedAllocator
from sim.kv.tiers.movement import Copy, Part
from sim.kv.tiers.store import TierStore
from sim.kv.transfer import Transfer

_ARENA_BLOCKS: Final = 64  # allocated at once: pinning memory costs by the call


class HostBlocks:
    """KV blocks in host memory, by content; room of what the store has dropped is used again."""

    def __init__(self, device: Device, block_bytes: int, store: TierStore) -> None:
        self._device = device
        self._block_bytes = block_bytes
        self._store = store
        self._place: dict[int, Array] = {}
        self._free: list[Array] = []

    def room_for(self, content: int) -> Array:
        """Bytes into which the content's block is to be written."""
        place = self._place.get(content)
        if place is None:
            if not self._free:
                self._make_room()
            place = self._place[content] = self._free.pop()
        return place

    def of(self, content: int) -> Array:
        place = self._place.get(content)
        if place is None:
            raise InvariantError(f"content {content} is read from host memory, where nobody wrote it")
        return place

    def _make_room(self) -> None:
        for content in [content for content in self._place if not self._store.knows(content)]:
            self._free.append(self._place.pop(content))
        if not self._free:
            arena = self._device.host_buffer(_ARENA_BLOCKS * self._block_bytes, pinned=True)
            self._free += list(arena.reshape(_ARENA_BLOCKS, self._block_bytes))


@dataclass(slots=True, eq=False)
class _Moving:
    transfer: Transfer
    event: Event | None  # None: there was nothing to wait for


class Movement:
    """What is on its way between HBM and host memory."""

    def __init__(self, device: Device, pool: KvBlocks, allocator: Allocator) -> None:
        self._device = device
        self._pool = pool
        self._moving: list[_Moving] = []
        self._host: HostBlocks | None = None
        if isinstance(allocator, TieredPagedAllocator):
            if allocator.lower.disk is not None:
                raise ConfigError(
                    "kv tiers: the miniature engine has host memory below HBM, and no disk; leave it out"
                )
            pool.require_plain("kv tiers")
            self._host = HostBlocks(device, pool.block_bytes, allocator.lower.host)
            self._loads: Stream = device.stream()
            self._offloads: Stream = device.stream()

    @property
    def moving(self) -> bool:
        return bool(self._moving)

    def start(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            self._moving.append(_Moving(transfer, self._begin(transfer)))

    def landed(self) -> list[Transfer]:
        ended = [one for one in self._moving if one.event is None or one.event.done]
        self._moving = [one for one in self._moving if one not in ended]
        return [one.transfer for one in ended]

    def wait_blocking(self) -> None:
        for one in self._moving:
            if one.transfer.blocking and one.event is not None:
                one.event.synchronize()

    def _begin(self, transfer: Transfer) -> Event | None:
        work = transfer.payload
        if work is None and transfer.route == "copy":
            return None
        if isinstance(work, Copy):
            return self._offload(work)
        if isinstance(work, Part):
            return self._load(work)
        raise InvariantError(f"nobody here moves {transfer}")

    def _offload(self, work: Copy) -> Event:
        assert self._host is not None
        rooms = [self._host.room_for(content) for content in work.contents]
        blocks = np.array(work.slots, dtype=np.int64)

        def copy() -> None:
            gathered = self._gather(blocks)
            for room, block in zip(rooms, gathered, strict=True):
                self._device.copy(
                    room, block.reshape(-1).view(np.uint8), self._offloads if self._async else None
                )

        self._offloads.wait(self._device.main.record())
        self._offloads.run(copy)
        return self._offloads.record()

    def _load(self, work: Part) -> Event:
        assert self._host is not None
        rooms = [self._host.of(content) for content in work.contents]
        blocks = np.array(work.slots, dtype=np.int64)

        def copy() -> None:
            self._scatter(blocks, rooms)

        self._loads.wait(self._device.main.record())
        self._loads.run(copy)
        return self._loads.record()

    @property
    def _async(self) -> bool:
        return self._device.kind == "cuda"

    def _gather(self, blocks: NDArray[np.int64]) -> Array:
        """[blocks, layers, 2, block_size, kv_heads, head_dim]."""
        xp, ops = self._device.xp, self._device.ops
        ids = self._device.to_device(blocks.astype(INDEX))
        parts = xp.stack([ops.gather_blocks(layer, ids).data for layer in self._pool.layers])
        return xp.ascontiguousarray(xp.moveaxis(parts, 2, 0))

    def _scatter(self, blocks: NDArray[np.int64], rooms: Sequence[Array]) -> None:
        xp, ops = self._device.xp, self._device.ops
        first = self._pool.layers[0]
        shape = (len(rooms), len(self._pool.layers), 2, *first.data.shape[2:])
        staged = xp.empty(shape, dtype=first.data.dtype)
        for room, block in zip(rooms, staged, strict=True):
            self._device.copy(block.reshape(-1).view(np.uint8), room, self._loads if self._async else None)
        ids = self._device.to_device(blocks.astype(INDEX))
        for number, layer in enumerate(self._pool.layers):
            data = xp.ascontiguousarray(xp.moveaxis(staged[:, number], 0, 1))
            ops.scatter_blocks(layer, ids, self._pool.plain(data))
