"""The engine's tokens are those of a transformer without pages, batches and caches, whatever the policies do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwbackend.device import open_device
from hwbackend.engine.device_executor import DeviceExecutor, EngineParts
from hwbackend.engine.kv_pool import KvBlocks
from hwbackend.engine.movement import Movement
from hwbackend.engine.realtime import serve
from hwbackend.engine.tokens import UNKNOWN, TokenStore
from hwbackend.engine.transformer import Transformer
from hwbackend.engine.weights import check_runs, random_weights
from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.decision import EngineLimits
from sim.batching.dynamic_chunked import DynamicChunked
from sim.batching.length_grouped import LengthGrouped
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch
from sim.engine.cluster import EngineSetup, prefixes
from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.kv.allocators.arena import Arena
from sim.kv.allocators.contiguous import Contiguous
from sim.kv.allocators.grow import Grow
from sim.kv.allocators.paged import Paged
from sim.kv.build import KvSetup
from sim.kv.eviction.lfu import Lfu
from sim.model import ModelSpec, load_model
from sim.routing.least_loaded import LeastLoaded
from tests.hwbackend.engine_doubles import ManualClock
from tests.hwbackend.engine_reference import logits_of
from tests.sim.doubles import AffineCost
from tests.sim.engines import trace_of, with_prefixes
from tests.sim.sessions import session_trace, sessions
from workloads.trace import Trace

MODEL = ModelSpec(
    name="test",
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=97,
    max_position_embeddings=512,
)
WEIGHTS = random_weights(MODEL, 7)
COST = AffineCost(base_ns=1000, per_seq_ns=70, per_prefill_token_ns=40, per_context_ns=3)
BLOCK = 4


class TimedExecutor(DeviceExecutor):
    """Computes for real, on a clock that passes as a cost model says: the same run every time."""

    clock: ManualClock

    def run(self, core, plan):
        super().run(core, plan)
        self.clock.time_ns += COST.mixed_ns(plan.decodes, plan.context_tokens, 0, plan.shapes)


def serve_on_cpu(trace: Trace, engine: EngineSetup, *, executor_class=TimedExecutor, **options: Any):
    """Returns the run, its tokens, and the logits behind (request, position)."""
    device = open_device("cpu")
    hashes = prefixes(trace, BLOCK)
    clock = ManualClock()
    logits: dict[tuple[int, int], np.ndarray] = {}
    made = []

    def keep(named, rows):
        logits.update(zip(named, rows, strict=True))

    def make(table, core):
        tokens = TokenStore(table, hashes, BLOCK, MODEL.vocab_size)
        transformer = Transformer(MODEL, WEIGHTS, device, 512)
        pool = KvBlocks(device, MODEL, core.num_blocks, BLOCK)
        for layer in pool.layers:
            layer.data.fill(np.nan)  # whoever reads what nobody wrote will show it
        parts = EngineParts(device, transformer, pool, tokens, Movement(device, pool, core.allocator))
        executor = executor_class(parts, on_logits=keep)
        executor.clock = clock
        made.append(tokens)
        return executor

    try:
        served = serve(
            trace,
            COST,
            engine,
            hashes=hashes,
            make_executor=make,
            make_clock=lambda: clock,
            router=LeastLoaded(),
            router_seed=np.random.SeedSequence(1),
            **options,
        )
    finally:
        device.close()
    served.core.check_integrity()
    return served, made[0], logits


def engine_of(*, batcher=None, blocks=40, allocator=None, prefix_caching=False, eviction=None, **kv: Any):
    setup = KvSetup(
        blocks,
        BLOCK,
        256,
        allocator=allocator or Paged(),
        prefix_caching=prefix_caching,
        eviction=eviction,
        **kv,
    )
    return EngineSetup(EngineLimits(6, 40, BLOCK), batcher or Chunked(), setup)


def assert_right(served, tokens: TokenStore, logits) -> None:
    """Every token and its logits against the reference, computed from the sequence's tokens alone."""
    table = served.table
    done = np.flatnonzero(served.requests.completed).tolist()
    assert (served.requests.columns["status"] >= 0).all()
    expected = {(i, table.input_tokens[i] + k) for i in done for k in range(table.output_tokens[i])}
    assert expected <= logits.keys()
    for index, position in sorted(logits):
        sequence = tokens.of(index)
        assert (sequence[:position] != UNKNOWN).all()
        reference = logits_of(MODEL, WEIGHTS, sequence[:position])
        np.testing.assert_allclose(logits[index, position], reference, rtol=0, atol=2e-4)
        said = tokens.sampled[index][position - table.input_tokens[index]]
        first, second = np.sort(reference)[-2:][::-1]
        assert said == np.argmax(reference) or first - second < 4e-4


REQUESTS = st.lists(
    st.tuples(st.integers(0, 30).map(lambda t: t * 1000), st.integers(1, 45), st.integers(1, 12)),
    min_size=1,
    max_size=9,
).map(sorted)
BATCHERS = st.sampled_from(
    [
        Chunked(),
        Chunked(chunk_tokens=5),
        Continuous(),
        DynamicChunked(target_tpot_ms=0.002, min_chunk_tokens=3),
        LengthGrouped(groups=2, budget=90),
        StaticBatch(batch_size=3),
    ]
)
SLOW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(REQUESTS, BATCHERS, st.integers(15, 40))
def test_chunks_preemption_and_batchers(asked, batcher, blocks):
    trace = trace_of(*asked)
    served, tokens, logits = serve_on_cpu(trace, engine_of(batcher=batcher, blocks=blocks))
    assert_right(served, tokens, logits)


def test_preemption_happens_in_what_is_tested():
    trace = trace_of(*((1000 * i, 20, 12) for i in range(8)))
    served, tokens, logits = serve_on_cpu(trace, engine_of(blocks=16))
    assert served.core.preemptions >= 2
    assert_right(served, tokens, logits)


SHARED = [[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 7], [1, 2, 3, 4, 5, 8], [9], [1, 2, 3, 6, 10]]


@pytest.mark.parametrize("batcher", [Chunked(), PrefixFirst(), Chunked(chunk_tokens=6)])
@pytest.mark.parametrize("eviction", [None, Lfu()])
def test_prefix_caches_with_eviction(batcher, eviction):
    prompts = [21, 18, 13, 26, 9, 22]
    trace = trace_of(*((7000 * i, prompts[i % 6], 6) for i in range(18)))
    trace = with_prefixes(trace, [SHARED[i % 6] for i in range(18)], BLOCK)
    engine = engine_of(batcher=batcher, blocks=18, prefix_caching=True, eviction=eviction)
    served, tokens, logits = serve_on_cpu(trace, engine)
    assert served.steps.prefix_hits > 20
    assert_right(served, tokens, logits)


def test_prompts_of_one_step_share_blocks_that_the_step_computes():
    trace = with_prefixes(trace_of(*((0, 17, 4) for _ in range(5))), [[1, 2, 3, 4]] * 5, BLOCK)
    served, tokens, logits = serve_on_cpu(trace, engine_of(blocks=60, prefix_caching=True))
    assert len(served.records[0].chunks) == 5
    assert served.steps.prefix_hits == 4 * 16
    assert_right(served, tokens, logits)


@SLOW
@given(sessions, st.booleans(), st.sampled_from([Chunked(), PrefixFirst()]))
def test_sessions_repeat_what_was_said(talks, closed, batcher):
    trace = session_trace(talks[:4], BLOCK, closed=closed)
    engine = engine_of(batcher=batcher, blocks=64, prefix_caching=True)
    served, tokens, logits = serve_on_cpu(trace, engine, max_concurrency=2 if closed else None)
    assert_right(served, tokens, logits)


@pytest.mark.parametrize(
    "allocator",
    [
        Contiguous(reserve="exact", placement="best_fit"),
        Arena(reserve="exact", alignment_tokens=4),
        Grow(step_tokens=8, placement="first_fit"),
    ],
)
def test_ranges(allocator):
    trace = trace_of(*((900 * i, 5 + 7 * i % 23, 4 + 5 * i % 17) for i in range(14)))
    served, tokens, logits = serve_on_cpu(trace, engine_of(allocator=allocator, blocks=30))
    assert_right(served, tokens, logits)
    if isinstance(allocator, Grow):
        assert served.core.allocator.moves > 3


def test_graphs_yield_the_same_tokens(monkeypatch):
    """On a CPU a graph is calls in a row, between the same fixed arrays and with the same padding rows."""
    from hwbackend.devices.cpu import CpuDevice

    trace = trace_of(*((1500 * i, 5 + 7 * i % 23, 4 + 5 * i % 17) for i in range(14)))
    _, plain, _ = serve_on_cpu(trace, engine_of(blocks=30))
    replayed = []

    class Graphs(TimedExecutor):
        def __init__(self, parts, on_logits):
            super().__init__(parts, capture_sizes=(1, 2, 4, 8), max_blocks=30)
            replayed.append(self._graphs._made)

    monkeypatch.setattr(CpuDevice, "has_graphs", True)
    _, graphed, _ = serve_on_cpu(trace, engine_of(blocks=30), executor_class=Graphs)
    assert {1, 2, 4} <= replayed[0].keys()
    for index, said in plain.sampled.items():
        assert (graphed.sampled[index] == said).all()


def test_equalprefixes_are_equal_tokens_and_nothing_else_is():
    trace = with_prefixes(
        trace_of((0, 18, 3), (1, 18, 3), (2, 10, 3)), [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2]], BLOCK
    )
    hashes = prefixes(trace, BLOCK)
    table = RequestTable(trace, hashes)
    first, second, third = (TokenStore(table, hashes, BLOCK, 50_000).of(i) for i in range(3))
    assert (first[:8] == second[:8]).all()
    assert (first[:8] == third[:8]).all()
    assert (first[8:18] != second[8:18]).all()
    assert (third[8:10] != first[8:10]).all()
    assert (first[18:] == UNKNOWN).all()


def test_models_beyond_plain_ones_are_refused():
    for name, what in (("mixtral-8x7b", "experts"), ("qwen3-8b", "qk_norm")):
        with pytest.raises(ConfigError, match=what):
            check_runs(load_model(name))
