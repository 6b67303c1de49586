"""KV blocks in device memory, and what reads them in a step: each sequence by its block table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.ops import KvPool
from sim.errors import ConfigError
from sim.model import ModelSpec

Int64 = NDArray[np.int64]
INDEX: Final = np.int32  # of ids, slots, positions and lengths, as `hwbackend.ops` has them


class KvBlocks:
    """`num_blocks` blocks of `block_size` tokens in each of `num_layers` layers (by default the model's)."""

    def __init__(
        self,
        device: Device,
        model: ModelSpec,
        num_blocks: int,
        block_size: int,
        num_layers: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        count = model.num_layers if num_layers is None else num_layers
        self.layers: list[KvPool] = [
            device.ops.new_pool(num_blocks, block_size, model.num_kv_heads, model.head_dim)
            for _ in range(count)
        ]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.bytes_per_token * layer.block_size for layer in self.layers)

    def require_plain(self, user: str) -> None:
        """Raise ConfigError where a block is more than its values, for a `user` who copies these alone."""
        dtypes = sorted({layer.dtype for layer in self.layers if layer.scales is not None})
        if dtypes:
            raise ConfigError(
                f"{user}: KV blocks of {', '.join(dtypes)} have scales, which are not copied to host memory and back; "
                "keep KV in the dtype of the device"
            )

    def plain(self, data: Array) -> KvPool:
        """Values [2, blocks, ...] of a layer, from elsewhere, as blocks that its pool takes."""
        return KvPool(data, None, self.layers[0].dtype)

    def slots(self, table: Int64, positions: Int64) -> Int64:
        """Places of tokens at `positions` of the sequence with this block table."""
        return table[positions // self.block_size] * self.block_size + positions % self.block_size


@dataclass(frozen=True, eq=False, slots=True)
class PromptChunk:
    """Tokens `begin` to `end` of the step: a part of one prompt, on top of `computed` tokens."""

    begin: int
    end: int
    table: Array
    computed: int


class PagedAttention:
    """One step: its first `tables.shape[0]` tokens decode, the others are prompt chunks, one after the other.

    slots   [tokens] where each token's KV goes
    tables  [decodes, blocks] block tables, and `lens` [decodes] their contexts with the new token, at most `longest`
    """

    def __init__(
        self,
        device: Device,
        pool: KvBlocks,
        slots: Array,
        tables: Array,
        lens: Array,
        longest: int,
        chunks: Sequence[PromptChunk] = (),
    ) -> None:
        self._xp = device.xp
        self._ops = device.ops
        self._pool = pool
        self._slots = slots
        self._tables = tables
        self._lens = lens
        self._longest = longest
        self._chunks = chunks

    def attend(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        pool = self._pool.layers[layer]
        self._ops.append_kv(
            pool, k, v, self._slots
        )  # of all first: a prompt may share blocks that another computes
        decodes = self._tables.shape[0]
        if not self._chunks:
            return self._decode(layer, q, k, v)
        out = self._xp.empty(q.shape, dtype=q.dtype)
        if decodes:
            out[:decodes] = self._decode(layer, q[:decodes], k[:decodes], v[:decodes])
        for chunk in self._chunks:
            part = slice(chunk.begin, chunk.end)
            out[part] = self._ops.prefill_attention(q[part], pool, chunk.table, chunk.computed)
        return out

    def _decode(self, layer: int, q: Array, k: Array, v: Array) -> Array:  # noqa: ARG002  they are in the pool
        pool, longest = self._pool.layers[layer], self._longest
        return self._ops.decode_attention(q, pool, self._tables, self._lens, max_context_len=longest)
