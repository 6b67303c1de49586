"""Plans on a device: one forward pass over a step's decodes and prompt chunks, on the blocks that the allocator names.

Tokens of all sequences are packed: decodes first, then the chunks one after the other, so that every GEMM runs over
all of them at once. Attention reads each sequence's blocks through its table. Where the device has graphs, steps that
only decode are replayed from one captured for the next larger number of sequences; rows beyond the batch write
nowhere and yield nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device, Graph
from hwbackend.engine.kv_pool import INDEX, KvBlocks, PagedAttention, PromptChunk
from hwbackend.engine.movement import Movement
from hwbackend.engine.tokens import TokenStore
from hwbackend.engine.transformer import Attention, Transformer
from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import Sequence as Running
from sim.errors import InvariantError
from sim.kv.allocators.region import RegionAllocator
from sim.kv.transfer import Transfer

Int64 = NDArray[np.int64]

OnLogits = Callable[[Sequence[tuple[int, int]], Array], None]
"""Gets (request, position of the token that is sampled) of each row, and the logits [rows, vocab]."""


@dataclass(frozen=True, eq=False, slots=True)
class DecodeRow:
    """A sequence that decodes: the token at `position` is fed, the one behind it sampled."""

    seq: Running
    position: int
    table: Int64


@dataclass(frozen=True, eq=False, slots=True)
class ChunkRow:
    """A part of a prompt: `new` tokens from `computed` on; the last of them yields a token where it completes it."""

    seq: Running
    computed: int
    new: int
    table: Int64

    @property
    def samples(self) -> bool:
        return self.computed + self.new == self.seq.target


@dataclass(frozen=True, eq=False, slots=True)
class EngineParts:
    """What an executor works with; made anew for each run, but for device and transformer."""

    device: Device
    transformer: Transformer
    pool: KvBlocks
    tokens: TokenStore
    movement: Movement


class DeviceExecutor:
    """An `Executor` whose KV is all in device memory."""

    def __init__(
        self,
        parts: EngineParts,
        *,
        capture_sizes: Sequence[int] = (),
        max_blocks: int = 0,
        on_logits: OnLogits | None = None,
    ) -> None:
        self.device = parts.device
        self.pool = parts.pool
        self.transformer = parts.transformer
        self._tokens = parts.tokens
        self._movement = parts.movement
        self._on_logits = on_logits
        self._graphs = _DecodeGraphs(parts, capture_sizes, max_blocks)
        self._places: dict[
            int, tuple[int, Int64]
        ] = {}  # of regions, by request: admission, blocks as they were

    # Transfers.

    @property
    def moving(self) -> bool:
        return self._movement.moving

    def start(self, transfers: list[Transfer]) -> None:
        self._movement.start(transfers)

    def landed(self) -> list[Transfer]:
        return self._movement.landed()

    def ready(self, core: EngineCore, plan: BatchPlan) -> None:  # noqa: ARG002  what it needs is what blocks it
        self._movement.wait_blocking()

    def ended(self, sequences: list[Running]) -> None:
        for seq in sequences:
            self._places.pop(seq.index, None)

    # Steps.

    def run(self, core: EngineCore, plan: BatchPlan) -> None:
        decodes, chunks = rows_of(core, plan)
        if isinstance(core.allocator, RegionAllocator):
            self._follow_regions([*decodes, *chunks])
        sampled = self._forward(decodes, chunks)
        self._keep(decodes, chunks, sampled)

    def warm_up(self, steps: int) -> None:
        """Let everything happen that happens once: kernels, graphs, first touches of memory. KV is written nowhere."""
        device, width = self.device, min(self.pool.block_size, 8)
        for layer in self.pool.layers:
            layer.data.fill(0)
        ids = self._put(np.zeros(width, dtype=np.int64))
        nowhere = self._put(np.full(width, -1))
        chunk = PromptChunk(0, width, self._put(np.zeros(1, dtype=np.int64)), 0)
        nobody = self._put(np.zeros((0, 1), dtype=np.int64)), self._put(np.zeros(0, dtype=np.int64))
        for _ in range(steps):
            attention = PagedAttention(device, self.pool, nowhere, *nobody, 0, [chunk])
            device.to_host(
                self.transformer.greedy(self.transformer.logits(self.transformer.hidden(ids, ids, attention)))
            )
        self._graphs.make_all()

    def _forward(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow]) -> Int64:
        """Tokens that the step samples: of every decode, then of every chunk that completes its prompt."""
        if decodes and not chunks and self._on_logits is None:
            graph = self._graphs.of(len(decodes))
            if graph is not None:
                return graph.run(*self._decode_inputs(decodes))
        ids, positions, slots = self._inputs(decodes, chunks)
        hidden = self.transformer.hidden(
            self._put(ids), self._put(positions), self._attention(decodes, chunks, self._put(slots))
        )
        rows = sampling_rows(decodes, chunks)
        if not rows.size:
            self.device.main.synchronize()
            return rows
        logits = self.transformer.logits(hidden if rows.size == ids.size else hidden[self._put(rows)])
        if self._on_logits is not None:
            named = [(row.seq.index, row.position + 1) for row in decodes]
            named += [(row.seq.index, row.seq.target) for row in chunks if row.samples]
            self._on_logits(named, self.device.to_host(logits))
        found: Int64 = self.device.to_host(self.transformer.greedy(logits))
        return found

    def _attention(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow], slots: Array) -> Attention:
        tables, lens = tables_of(decodes)
        return PagedAttention(
            self.device,
            self.pool,
            slots,
            self._put(tables),
            self._put(lens),
            int(lens.max(initial=0)),
            self._chunks(decodes, chunks),
        )

    def _chunks(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow]) -> list[PromptChunk]:
        parts = []
        begin = len(decodes)
        for row in chunks:
            parts.append(PromptChunk(begin, begin + row.new, self._put(row.table), row.computed))
            begin += row.new
        return parts

    def _inputs(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow]) -> tuple[Int64, Int64, Int64]:
        """Token ids, positions and KV slots of all tokens of the step."""
        ids, positions, slots = (list(part) for part in self._decode_inputs(decodes)[:3])
        for row in chunks:
            at = np.arange(row.computed, row.computed + row.new)
            ids.extend(self._tokens.of(row.seq.index)[at])
            positions.extend(at)
            slots.extend(self.pool.slots(row.table, at))
        both = (np.array(part, dtype=np.int64) for part in (ids, positions, slots))
        ids_of, positions_of, slots_of = both
        if ids_of.size and ids_of.min() < 0:
            raise InvariantError("a token is fed that was not sampled yet")
        return ids_of, positions_of, slots_of

    def _decode_inputs(self, decodes: Sequence[DecodeRow]) -> tuple[Int64, Int64, Int64, Sequence[DecodeRow]]:
        positions = np.array([row.position for row in decodes], dtype=np.int64)
        ids = np.array([self._tokens.of(row.seq.index)[row.position] for row in decodes], dtype=np.int64)
        size = self.pool.block_size
        blocks = np.array([row.table[row.position // size] for row in decodes], dtype=np.int64)
        return ids, positions, blocks * size + positions % size, decodes

    def _keep(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow], sampled: Int64) -> None:
        tokens = sampled.tolist()
        for row, token in zip(decodes, tokens, strict=False):
            self._tokens.sample(row.seq.index, row.position + 1, token)
        done = [row for row in chunks if row.samples]
        for chunk, token in zip(done, tokens[len(decodes) :], strict=True):
            self._tokens.sample(chunk.seq.index, chunk.seq.target, token)

    def _follow_regions(self, rows: Sequence[DecodeRow | ChunkRow]) -> None:
        """Copy what a region holds where it has moved; all is read before anything is written."""
        source: list[int] = []
        target: list[int] = []
        for row in rows:
            before = self._places.get(row.seq.index)
            if before is not None and before[0] == row.seq.ticket:
                held = before[1]
                now = row.table[: held.size]
                if held.size and held[0] != now[0]:
                    source += held.tolist()
                    target += now.tolist()
            self._places[row.seq.index] = row.seq.ticket, row.table
        if source:
            ops, old, new = self.device.ops, self._put(np.array(source)), self._put(np.array(target))
            for layer in self.pool.layers:
                ops.scatter_blocks(layer, new, ops.gather_blocks(layer, old))

    def _put(self, values: Int64) -> Array:
        return self.device.to_device(values.astype(INDEX))


class _DecodeGraphs:
    """Graphs of steps that only decode, by number of rows; captured when they are needed first."""

    def __init__(self, parts: EngineParts, sizes: Sequence[int], max_blocks: int) -> None:
        self._parts = parts
        self._max_blocks = max_blocks
        self._sizes = sorted(sizes) if parts.device.has_graphs else []
        self._made: dict[int, _DecodeGraph] = {}

    def make_all(self) -> None:
        for size in self._sizes:
            self.of(size)

    def of(self, rows: int) -> _DecodeGraph | None:
        """The smallest that so many rows fit in; None where there is none so large."""
        size = next((size for size in self._sizes if size >= rows), None)
        if size is None:
            return None
        if size not in self._made:
            self._made[size] = _DecodeGraph(self._parts, size, self._max_blocks)
        return self._made[size]


class _DecodeGraph:
    """One captured step of `rows` decodes, between fixed input and output arrays."""

    def __init__(self, parts: EngineParts, rows: int, max_blocks: int) -> None:
        device, transformer, pool = parts.device, parts.transformer, parts.pool
        self._device = device
        self._rows = rows
        self._ids, self._positions, self._slots, self._lens, self._out = (
            device.empty(rows, "int32") for _ in range(5)
        )
        self._tables = device.empty((rows, max_blocks), "int32")
        nothing = np.zeros(0, dtype=np.int64)
        self._fill(nothing, nothing, nothing, [])
        longest = max_blocks * pool.block_size
        attention = PagedAttention(device, pool, self._slots, self._tables, self._lens, longest)

        def step() -> None:
            hidden = transformer.hidden(self._ids, self._positions, attention)
            self._out[:] = transformer.greedy(transformer.logits(hidden))

        self._graph: Graph = device.capture([step])

    def run(self, ids: Int64, positions: Int64, slots: Int64, decodes: Sequence[DecodeRow]) -> Int64:
        """Tokens that the decodes sample."""
        self._fill(ids, positions, slots, decodes)
        self._graph.replay()
        found: Int64 = self._device.to_host(self._out)[: len(decodes)]
        return found

    def _fill(self, ids: Int64, positions: Int64, slots: Int64, decodes: Sequence[DecodeRow]) -> None:
        count = len(decodes)
        tables = np.zeros(self._tables.shape, dtype=INDEX)
        lens = np.ones(self._rows, dtype=INDEX)
        found, lens[:count] = tables_of(decodes)
        tables[:count, : found.shape[1]] = found
        for target, values, rest in (
            (self._ids, ids, 0),
            (self._positions, positions, 0),
            (self._slots, slots, -1),  # a negative slot takes nothing
        ):
            padded = np.full(self._rows, rest, dtype=INDEX)
            padded[:count] = values
            self._device.copy(target, padded)
        self._device.copy(self._lens, lens)
        self._device.copy(self._tables, tables)


def rows_of(core: EngineCore, plan: BatchPlan) -> tuple[list[DecodeRow], list[ChunkRow]]:
    """What a plan runs, as sequences with their block tables as they are for this step."""
    if plan.padded_rows or plan.padded_tokens:
        raise InvariantError(
            f"{plan.padded_tokens} tokens of padding are planned, and none are computed here"
        )
    table = core.allocator.block_table
    decodes = [
        DecodeRow(seq, seq.target + core.step - seq.joined_step, np.array(table(seq.kv), dtype=np.int64))
        for seq in core.running
        if seq.joined_step >= 0
    ]
    chunks = [
        ChunkRow(seq, seq.computed, new_tokens, np.array(table(seq.kv), dtype=np.int64))
        for seq, new_tokens in plan.chunks
    ]
    return decodes, chunks


def tables_of(decodes: Sequence[DecodeRow]) -> tuple[Int64, Int64]:
    """Block tables [decodes, blocks of the longest], filled up with 0, and contexts [decodes]."""
    widest = max((row.table.size for row in decodes), default=0)
    tables = np.zeros((len(decodes), widest), dtype=np.int64)
    for number, row in enumerate(decodes):
        tables[number, : row.table.size] = row.table
    return tables, np.array([row.position + 1 for row in decodes], dtype=np.int64)


def sampling_rows(decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow]) -> Int64:
    """Rows of the packed tokens whose logits are wanted."""
    rows = list(range(len(decodes)))
    end = len(decodes)
    for row in chunks:
        end += row.new
        if row.samples:
            rows.append(end - 1)
    return np.array(rows, dtype=np.int64)
