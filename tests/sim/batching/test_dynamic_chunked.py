"""Dynamic chunking: the largest chunk within the target, less where memory is short, more for the urgent."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sim.batching.decision import EngineLimits
from sim.batching.dynamic_chunked import DynamicChunked
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of

COST = AffineCost(
    base_ns=1_000_000, per_seq_ns=10_000, per_prefill_token_ns=5_000, per_prefill_context_ns=100
)
LIMITS = EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192, block_size=16)


@dataclass
class View:
    num_decodes: int = 4
    context_tokens: int = 0
    window_context_tokens: int = 0
    free_blocks: int = 1000
    num_blocks: int = 1000
    top_priority: int = 0
    next_prompt: tuple[int, int] = (100_000, 0)
    num_running: int = 5
    num_waiting: int = 1
    oldest_wait_ns: int = 0


def chunk(view: View, **options: float) -> int:
    return DynamicChunked(**options).build(LIMITS, COST).plan(view, 0).prefill_tokens


@given(target=st.floats(1.5, 60), decodes=st.integers(1, 200), computed=st.integers(0, 20_000))
def test_the_step_keeps_the_target_and_a_larger_chunk_would_not(target, decodes, computed):
    view = View(num_decodes=decodes, next_prompt=(10**6, computed))
    tokens = chunk(view, target_tpot_ms=target, min_chunk_tokens=16, kv_headroom=0)

    def predicted(new: int) -> int:
        return COST.mixed_ns(decodes, 0, 0, ((new, computed),))

    if tokens > 16:
        assert predicted(tokens) <= target * 1e6
    if tokens < LIMITS.max_num_batched_tokens - decodes:
        assert predicted(tokens + LIMITS.block_size) > target * 1e6


def test_nobody_decodes_nobody_waits():
    assert chunk(View(num_decodes=0), target_tpot_ms=1) == 8192


def test_short_memory_shrinks_the_chunk_to_what_is_spare():
    assert chunk(View(free_blocks=60), target_tpot_ms=1000, kv_headroom=0.05) == (60 - 50) * 16
    assert chunk(View(free_blocks=40), target_tpot_ms=1000, kv_headroom=0.05, min_chunk_tokens=32) == 32
    assert chunk(View(free_blocks=1000), target_tpot_ms=1000) == 8188


def test_urgent_prompts_stretch_the_target():
    calm, urgent = View(), View(top_priority=-1)
    assert chunk(urgent, target_tpot_ms=5, urgent_factor=2) == chunk(calm, target_tpot_ms=10)
    assert chunk(urgent, target_tpot_ms=5, urgent_factor=1) == chunk(calm, target_tpot_ms=5)


def test_decoding_sequences_never_wait_longer_than_the_target():
    """The same load under both: with a fixed chunk some gaps are long, with a dynamic one none exceeds 3 ms."""
    load = [(i * 2_000_000, 900, 40) for i in range(40)]
    cost = AffineCost(base_ns=500_000, per_prefill_token_ns=5_000)
    longest = {}
    for batcher in (DynamicChunked(target_tpot_ms=3, min_chunk_tokens=16), None):
        _, (log,) = run(trace_of(*load), cost, batcher=batcher, max_num_batched_tokens=2048, max_num_seqs=64)
        longest[batcher] = max(log.step_ns[log.decodes_of_steps() > 0])
    (dynamic, static) = longest.values()
    assert dynamic <= 3_000_000 < static


def test_a_prompt_always_makes_progress():
    requests, _ = run(
        trace_of((0, 4, 60), (1, 500, 2)),
        AffineCost(base_ns=10_000_000),
        batcher=DynamicChunked(target_tpot_ms=0.001, min_chunk_tokens=8),
        max_num_batched_tokens=64,
    )
    assert requests.completed.all()
