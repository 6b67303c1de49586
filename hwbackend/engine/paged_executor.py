"""Plans where KV is in host memory: each step reads the pages that the access pattern names, from HBM.

The simulator's own `PagedSteps` is asked at the turns of every step, as by a simulated replica: what the step reads,
what it waits for, what the prefetcher wants beside it. Attention then is over the pages that are read and no others;
rotary embedding is in the keys, so it does not matter which are left out between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwbackend.device import Array, Device
from hwbackend.engine.device_executor import (
    ChunkRow,
    DecodeRow,
    DeviceExecutor,
    EngineParts,
    OnLogits,
    rows_of,
)
from hwbackend.engine.host_pages import HostPages, tables_by_group
from hwbackend.engine.kv_pool import KvBlocks, PagedAttention, PromptChunk
from hwbackend.engine.page_link import PageLink, PageStream
from hwbackend.engine.transformer import Attention
from sim.engine.core import EngineCore
from sim.engine.paged_steps import PagedSteps
from sim.engine.plan import BatchPlan
from sim.engine.request import Sequence as Running
from sim.errors import InvariantError
from sim.kv.paging.host_paging import HostPaging

Int64 = NDArray[np.int64]


class PagedExecutor(DeviceExecutor):
    """A `DeviceExecutor` whose decodes read pages that HBM may lack. Stands for the links that `PagedSteps` asks."""

    def __init__(
        self,
        parts: EngineParts,
        paged: PagedSteps,
        pages: HostPages,
        link: PageLink,
        *,
        on_logits: OnLogits | None = None,
    ) -> None:
        super().__init__(parts, on_logits=on_logits)
        self._paged = paged
        self._pages = pages
        self._link = link
        self._known: dict[int, int] = {}  # blocks of a sequence that have pages
        self._groups: Sequence[tuple[Int64, Int64]] = ()
        self._last_pages = np.zeros((0, pages.groups), dtype=np.int64)
        self._last_blocks = np.zeros(0, dtype=np.int64)
        self._came = np.zeros(0, dtype=np.int64)  # pages that came beside the step that runs

    # Around a step.

    def ready(self, core: EngineCore, plan: BatchPlan) -> None:
        transfers = self._paged.demand(core, plan)
        decodes, _ = rows_of(core, plan)
        self._forget_others({row.seq.index for row in decodes})
        if decodes:
            self._bear(decodes)
            self._fetch(sum(transfer.num_bytes for transfer in transfers), len(decodes))
        super().ready(core, plan)

    def run(self, core: EngineCore, plan: BatchPlan) -> None:
        self._came = self._came[:0]
        self._paged.runs(self)  # type: ignore[arg-type]  # it asks for `stream` and `stop` alone
        super().run(core, plan)
        if plan.decodes:
            self._pages.write_back(self._last_blocks)

    def ended(self, sequences: list[Running]) -> None:
        paging = self._paging
        every = [paging.numbers(index).ravel() for index in self._known]
        self._paged.ran(self, sequences)  # type: ignore[arg-type]
        # A page that came while the step wrote its last token may have been copied before that token was there.
        self._pages.renew(np.intersect1d(self._came, self._last_pages))
        if every:
            numbers = np.concatenate(every)
            self._pages.keep_only(numbers, paging.resident(numbers))
        for seq in sequences:
            self._known.pop(seq.index, None)
        super().ended(sequences)

    # What `PagedSteps` takes for links.

    def stream(self, route: str, num_bytes: int, owner: str) -> PageStream:  # noqa: ARG002  there is one link
        queue = self._paging.queue
        if queue.size * self._pages.page_bytes != num_bytes:
            raise InvariantError(f"{queue.size} pages are queued, and {num_bytes} bytes")
        return self._link.start(queue.copy())

    def stop(self, stream: PageStream) -> int:
        self._came = came = self._link.stop(stream)
        return int(came.size) * self._pages.page_bytes

    # Pages.

    @property
    def _paging(self) -> HostPaging:
        return self._paged.paging

    def _forget_others(self, indices: set[int]) -> None:
        for index in self._known.keys() - indices:
            del self._known[index]

    def _bear(self, decodes: Sequence[DecodeRow]) -> None:
        """Give pages to blocks that have none: those of a prompt that is done, and of the token to come."""
        _, read = self._paging.step_reads
        last = []
        for row in decodes:
            numbers = self._paging.numbers(row.seq.index)
            known = self._known.get(row.seq.index, 0)
            new = numbers[known:]
            if new.size:
                held = self._paging.resident(new) | np.isin(new, read)
                self._pages.born(new, row.table[known : numbers.shape[0]], held)
                self._known[row.seq.index] = numbers.shape[0]
            last.append(numbers[row.position // self.pool.block_size])
        self._last_pages = np.array(last)
        size = self.pool.block_size
        self._last_blocks = np.array([row.table[row.position // size] for row in decodes])

    def _fetch(self, num_bytes: int, count: int) -> None:
        pages, numbers = self._paging.step_reads
        missing = numbers[~self._pages.there(numbers)]
        if missing.size * self._pages.page_bytes > num_bytes:
            raise InvariantError(
                f"{missing.size} pages are missing, and the step waits for {num_bytes} bytes"
            )
        self._link.fetch(missing, num_bytes)
        self._groups = tables_by_group(pages.group, pages.sequence, numbers, self._pages.groups, count)

    def _attention(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow], slots: Array) -> Attention:
        if not decodes:
            return super()._attention(decodes, chunks, slots)
        size = self.pool.block_size
        position = np.array([row.position for row in decodes])
        groups = []
        for place, (table, pages) in enumerate(self._groups):
            own = self._last_pages[:, place]
            written = np.where(self._pages.there(own), own * size + position % size, -1)
            last_read = table[np.arange(len(decodes)), np.maximum(pages - 1, 0)]
            lens = pages * size - np.where(last_read == own, size - 1 - position % size, 0)
            longest = int(lens.max(initial=0))
            groups.append(GroupReads(self._put(written), self._put(table), self._put(lens), longest))
        return HostPagedAttention(
            self.device, self.pool, slots, self._pages, groups, self._chunks(decodes, chunks)
        )


@dataclass(frozen=True, eq=False, slots=True)
class GroupReads:
    """What the decodes of a step read in a group of layers: pages by number, where their own token goes."""

    written: Array
    tables: Array
    lens: Array
    longest: int


class HostPagedAttention(PagedAttention):
    """Prompts over the engine's blocks; decodes over the pages that they read, in HBM."""

    def __init__(
        self,
        device: Device,
        pool: KvBlocks,
        slots: Array,
        pages: HostPages,
        groups: Sequence[GroupReads],
        chunks: Sequence[PromptChunk],
    ) -> None:
        first = groups[0]
        super().__init__(device, pool, slots, first.tables, first.lens, first.longest, chunks)
        self._pages = pages
        self._groups = groups

    def _decode(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        place, within = divmod(layer, self._pages.layers_per_group)
        hbm, reads = self._pages.hbm.layers[within], self._groups[place]
        self._ops.append_kv(hbm, k, v, reads.written)
        return self._ops.decode_attention(q, hbm, reads.tables, reads.lens, max_context_len=reads.longest)
