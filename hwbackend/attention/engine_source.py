"""The miniature engine as a source: one request of a load that it serves, as it decodes among the others.

Queries are those of the forward pass, keys those of the engine's own KV blocks, found by the request's block table and
read back from the device. Steps pass on a clock of their own, one like the other, so that the same load is the same
recording: who runs beside a sequence, and when, changes nothing that it attends to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hwbackend.attention.mass import token_mass
from hwbackend.attention.sampler import PageSampler
from hwbackend.device import Array, Device
from hwbackend.engine.device_executor import (
    ChunkRow,
    DecodeRow,
    DeviceExecutor,
    EngineParts,
    OnLogits,
)
from hwbackend.engine.kv_pool import INDEX, KvBlocks
from hwbackend.engine.movement import Movement
from hwbackend.engine.realtime import serve
from hwbackend.engine.tokens import TokenStore
from hwbackend.engine.transformer import Attention, Transformer
from sim.cost import StepCost
from sim.engine.cluster import EngineSetup, prefixes
from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.routing.round_robin import RoundRobin
from workloads.trace import BlockHashes, Trace

STEP_NS: Final = 1_000_000
"""What each step takes on the clock of a sampled run."""


@dataclass(frozen=True, eq=False)
class EngineLoad:
    """What an engine serves, and how: requests, its policies and KV blocks, the prices that its policies ask."""

    trace: Trace
    engine: EngineSetup
    cost: StepCost
    max_concurrency: int | None = None


class EngineAttention:
    """An `AttentionSource`: request `index` of a load, in the miniature engine with random weights."""

    random_weights = True

    def __init__(self, device: Device, transformer: Transformer, load: EngineLoad, index: int) -> None:
        model = transformer.model
        if not 0 <= index < len(load.trace):
            raise ConfigError(f"--request {index}: the load has requests 0 to {len(load.trace) - 1}")
        self.num_layers = model.num_layers
        self.num_kv_heads = model.num_kv_heads
        self._device = device
        self._transformer = transformer
        self._load = load
        self._index = index

    def __str__(self) -> str:
        prompt = int(self._load.trace.input_tokens[self._index])
        name = self._transformer.model.name
        return f"{name} with random weights, request {self._index} ({prompt} prompt tokens) of the miniature engine"

    def decode(self, sampler: PageSampler) -> None:
        load, clock = self._load, SteppedClock()
        hashes = prefixes(load.trace, load.engine.limits.block_size)
        try:
            serve(
                load.trace,
                load.cost,
                load.engine,
                hashes=hashes,
                make_executor=partial(self._executor, hashes, clock, sampler),
                make_clock=lambda: clock,
                router=RoundRobin(),
                router_seed=np.random.SeedSequence(0),  # one engine: nothing is drawn
                max_concurrency=load.max_concurrency,
            )
        except EnoughError:
            return

    def _executor(
        self,
        hashes: BlockHashes | None,
        clock: SteppedClock,
        sampler: PageSampler,
        table: RequestTable,
        core: EngineCore,
    ) -> SampledExecutor:
        model, size = self._transformer.model, self._load.engine.limits.block_size
        pool = KvBlocks(self._device, model, core.num_blocks, size)
        parts = EngineParts(
            self._device,
            self._transformer,
            pool,
            TokenStore(table, hashes, size, model.vocab_size),
            Movement(self._device, pool, core.allocator),
        )
        return SampledExecutor(parts, clock, self._index, sampler)


class EnoughError(Exception):
    """The sampler has what it wants; the rest of the load need not run."""


class SteppedClock:
    """Time in which every step takes as long as any other, and waiting takes none."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until(self, when_ns: int) -> None:
        self._now_ns = max(self._now_ns, when_ns)

    def step(self) -> None:
        self._now_ns += STEP_NS


class SampledExecutor(DeviceExecutor):
    """A `DeviceExecutor` that shows one request's decode steps to a sampler; it computes what it would without.

    It raises `EnoughError` after the step with which the sampler is done, unless it is to serve `everything`.
    """

    def __init__(
        self,
        parts: EngineParts,
        clock: SteppedClock,
        index: int,
        sampler: PageSampler,
        *,
        everything: bool = False,
        on_logits: OnLogits | None = None,
    ) -> None:
        super().__init__(parts, on_logits=on_logits)
        self._clock = clock
        self._index = index
        self._sampler = sampler
        self._everything = everything

    def run(self, core: EngineCore, plan: BatchPlan) -> None:
        super().run(core, plan)
        self._clock.step()
        if self._sampler.done and not self._everything:
            raise EnoughError

    def _attention(self, decodes: Sequence[DecodeRow], chunks: Sequence[ChunkRow], slots: Array) -> Attention:
        attention = super()._attention(decodes, chunks, slots)
        numbers = [number for number, row in enumerate(decodes) if row.seq.index == self._index]
        if not numbers or self._sampler.done:
            return attention
        row = numbers[0]
        return SampledAttention(attention, self.device, self.pool, row, decodes[row], self._sampler)


class SampledAttention:
    """An `Attention` that shows the mass of one decode of another, row `row` of the step."""

    def __init__(
        self,
        attention: Attention,
        device: Device,
        pool: KvBlocks,
        row: int,
        sequence: DecodeRow,
        sampler: PageSampler,
    ) -> None:
        self._attention = attention
        self._device = device
        self._pool = pool
        self._row = row
        self._context_tokens = sequence.position + 1
        blocks = -(-self._context_tokens // pool.block_size)
        self._blocks = device.to_device(sequence.table[:blocks].astype(INDEX))
        self._sampler = sampler

    def attend(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        attended = self._attention.attend(layer, q, k, v)
        query = self._host(q[self._row : self._row + 1])[0]
        keys = self._host(self._device.ops.gather_blocks(self._pool.layers[layer], self._blocks).data[0])
        tokens = keys.reshape(-1, *keys.shape[2:])[: self._context_tokens]
        self._sampler.add(self._context_tokens, layer, token_mass(query, tokens))
        return attended

    def _host(self, values: Array) -> NDArray[np.float64]:
        """Read values back, as they are."""
        floats = self._device.ops.to_floats(self._device.xp.ascontiguousarray(values))
        found: NDArray[np.float64] = self._device.to_host(floats).astype(np.float64)
        return found
