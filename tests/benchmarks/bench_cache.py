"""Block accesses per second of a prefix cache, beside a naive LRU. `pytest tests/benchmarks/bench_cache.py`

`extra_info` holds `accesses_per_s` (accesses of the trace by the median time of one call) and, where a call answers
for many capacities, how many. The yardstick is an OrderedDict that counts hits per block and nothing else; what is
measured also finds leading runs and tokens.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from sim.kv.eviction import AnyEviction, Lfu, Lru
from sim.kv.eviction.named import NamedEviction, names, parse_eviction
from sim.kv.replay.block_accesses import BlockAccesses
from sim.kv.replay.cache_study import study
from sim.kv.replay.prefix_replay import replay
from tests.data import ROOT
from workloads.build import build_workload
from workloads.config import parse_workload
from workloads.expand import expand_hashes
from workloads.readers import read_trace
from workloads.trace import Trace

MOONCAKE = ROOT / "traces" / "mooncake_fast25_conversation.jsonl"
CAPACITY = 30_000
MANY = range(500, 100_500, 500)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Mooncake conversations: the real trace where it is, else the shipped model of it."""
    if MOONCAKE.exists():
        return read_trace(MOONCAKE)
    return build_workload(parse_workload({"trace": "mooncake-conv"}), np.random.SeedSequence(0)).trace


def measure(benchmark, accesses: int, work, rounds: int = 5):
    result = benchmark.pedantic(work, rounds=rounds, warmup_rounds=1)
    benchmark.extra_info["accesses"] = accesses
    benchmark.extra_info["accesses_per_s"] = round(accesses / benchmark.stats.stats.median)
    return result


def naive_lru(blocks: list[int], capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in blocks:
        if block in cache:
            hits += 1
            cache.move_to_end(block)
        else:
            if len(cache) >= capacity:
                cache.popitem(last=False)
            cache[block] = None
    return hits


@pytest.mark.benchmark(group="mooncake, 512-token blocks")
def test_yardstick_ordered_dict(benchmark, trace):
    blocks = trace.hashes.ids.tolist()
    assert measure(benchmark, len(blocks), lambda: naive_lru(blocks, CAPACITY)) > 0


@pytest.mark.benchmark(group="mooncake, 512-token blocks")
@pytest.mark.parametrize("capacities", [[CAPACITY], list(MANY)], ids=["one capacity", "200 capacities"])
@pytest.mark.parametrize("eviction", ["lru", "lru_tail_first"])
def test_lru(benchmark, trace, eviction, capacities):
    """From a trace as read to all hit counts."""
    policies = [parse_eviction(eviction)]
    found = measure(
        benchmark, trace.hashes.ids.size, lambda: study(BlockAccesses.of(trace), policies, capacities)
    )
    benchmark.extra_info["capacities"] = len(capacities)
    at = {one.capacity: one.hits.per_block for one in found.measured}
    assert (
        at[CAPACITY] == replay(found.accesses, Lru(), CAPACITY, tail_first=policies[0].tail_first).per_block
    )


@pytest.mark.benchmark(group="mooncake, 512-token blocks")
@pytest.mark.parametrize("name", names())
def test_policy_objects(benchmark, trace, name):
    """One replay through a policy's notifications, as an engine gives them."""
    accesses, policy = BlockAccesses.of(trace), parse_eviction(name).policy
    hits = measure(benchmark, len(accesses), lambda: replay(accesses, policy, CAPACITY), rounds=2)
    assert 0 < hits.per_block <= len(accesses)


@pytest.mark.benchmark(group="mooncake, 16-token blocks")
@pytest.mark.parametrize("eviction", [Lru(), Lfu()], ids=["lru, 200 capacities", "lfu, one capacity"])
def test_blocks_of_an_engine(benchmark, trace, eviction: AnyEviction):
    small = expand_hashes(trace, 16)
    capacities = [32 * c for c in MANY] if isinstance(eviction, Lru) else [32 * CAPACITY]
    policies = [NamedEviction(eviction)]
    count = small.hashes.ids.size
    found = measure(benchmark, count, lambda: study(BlockAccesses.of(small), policies, capacities), rounds=1)
    assert len(found.measured) == len(capacities)
