"""The replay of a prefix cache: the published worked example, naive caches, and laws that hold on any trace."""

from __future__ import annotations

import csv
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kv.eviction import Belady, Fifo, LengthAware, Lfu, LfuPerfect, Lru, LruLfu, Ttl
from sim.kv.eviction.named import parse_eviction
from sim.kv.replay.block_accesses import BlockAccesses
from sim.kv.replay.cache_study import study
from sim.kv.replay.lru_curve import lru_curve, tail_first_curve
from sim.kv.replay.prefix_replay import BlockCache, Hits, replay
from sim.kv.replay.stack_distance import larger_before, last_uses, stack_distances
from tests.data import shared_data
from workloads.errors import ConfigError, InputError
from workloads.expand import expand_hashes
from workloads.readers import read_trace
from workloads.trace import BlockHashes, Trace

ALL = (
    Lru(),
    Fifo(),
    Lfu(),
    LfuPerfect(),
    LruLfu(),
    LengthAware(),
    Ttl(ttl_s=7),
    Ttl(since="insertion"),
    Belady(),
)
B = 4  # tokens a block


def trace_of(prompts, *, tenant=None, gap_s=1.0) -> Trace:
    """Prompts as lists of block ids, the last block one token short, a second apart."""
    n = len(prompts)
    return Trace.build(
        np.arange(n) * round(gap_s * 1e9),
        [len(p) * B - 1 for p in prompts],
        np.ones(n),
        tenant=tenant,
        tenant_names=("a", "b", "c"),
        hashes=BlockHashes.build(B, [len(p) for p in prompts], [b for p in prompts for b in p]),
    )


def chained(prompts) -> list[list[int]]:
    """Give every block an id that stands for its whole prefix, as engines do."""
    codes: dict[tuple[int, ...], int] = {}
    return [[codes.setdefault(tuple(p[: i + 1]), len(codes)) for i in range(len(p))] for p in prompts]


ANY_PROMPTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=7), min_size=1, max_size=25)
PREFIX_PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30).map(
    chained
)
PROMPTS = st.one_of(ANY_PROMPTS, PREFIX_PROMPTS)


def naive_lru(prompts, capacity, *, tail_first=False) -> Hits:
    """The definitions in the plainest code, with none of ours."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = run_hits = tokens = 0
    for prompt in prompts:
        run = 0
        while run < len(prompt) and prompt[run] in cache:
            run += 1
        run_hits += run
        tokens += min(run * B, len(prompt) * B - 1)
        for block in prompt:
            hits += block in cache
            if block not in cache and len(cache) == capacity:
                cache.popitem(last=False)
            cache[block] = None
            cache.move_to_end(block)
        for block in reversed(prompt) if tail_first else ():
            if block in cache:
                cache.move_to_end(block)
    return Hits(hits, run_hits, tokens)


PUBLISHED = {
    "lru": "lru",
    "fifo": "fifo",
    "lfu_lru_tie": "lfu",
    "lfu_perfect_lru_tie": "lfu_perfect",
    "lfu_lengthaware": "length_aware",
    "belady": "belady",
    "lru_tail_first": "lru_tail_first",
}


def test_every_row_of_the_worked_example():
    table = shared_data("prefix_cache", "mooncake_hit_rates_first500.csv")
    trace = read_trace(shared_data("traces", "mooncake_fast25_conversation.jsonl")).head(500)
    accesses = BlockAccesses.of(trace)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 63
    sizes = {row["capacity_blocks"]: row["capacity_blocks"] for row in rows}
    sizes["inf"] = str(10**6)
    evictions = [parse_eviction(name) for name in PUBLISHED.values()]
    found = study(accesses, evictions, [int(size) for size in sizes.values()])
    by_cache = {(one.eviction.name, one.capacity): one.hits for one in found.measured}
    assert found.unique_blocks == 11_879
    for row in rows:
        hits = by_cache[PUBLISHED[row["policy"]], int(sizes[row["capacity_blocks"]])]
        kind = {"leading_run_tokens": "tokens"}.get(row["hit_definition"], row["hit_definition"])
        total = accesses.input_tokens if kind == "tokens" else len(accesses)
        count = getattr(hits, kind)
        assert int(row["block_accesses"]) == len(accesses)
        assert row["hits"] in ("", str(count)), row
        assert round(count / total, 6) == float(row["hit_rate"]), row


def test_one_pass_equals_a_replay_on_the_worked_example():
    """Also where a replay of its own gives the row, and not the curve."""
    trace = read_trace(shared_data("traces", "mooncake_fast25_conversation.jsonl")).head(500)
    accesses = BlockAccesses.of(trace)
    plain, tail = lru_curve(accesses), tail_first_curve(accesses)
    assert tail is not None
    for capacity in (1, 100, 500, 1000, 5000, 11_000, 20_000):
        assert plain.at(capacity) == replay(accesses, Lru(), capacity)
        if capacity >= tail.valid_from:
            assert tail.at(capacity) == replay(accesses, Lru(), capacity, tail_first=True)


@settings(max_examples=300, deadline=None)
@given(PROMPTS)
def test_lru_at_every_capacity_at_once(prompts):
    accesses = BlockAccesses.of(trace_of(prompts))
    plain, tail = lru_curve(accesses), tail_first_curve(accesses)
    assert plain.at(0) == (0, 0, 0)
    for capacity in range(1, 45):
        assert plain.at(capacity) == naive_lru(prompts, capacity) == replay(accesses, Lru(), capacity)
        expected = naive_lru(prompts, capacity, tail_first=True)
        assert replay(accesses, Lru(), capacity, tail_first=True) == expected
        if tail is not None and capacity >= tail.valid_from:
            assert tail.at(capacity) == expected


@settings(max_examples=50, deadline=None)
@given(PREFIX_PROMPTS)
def test_prompts_with_prefix_ids_always_have_a_tail_first_curve(prompts):
    curve = tail_first_curve(BlockAccesses.of(trace_of(prompts)))
    assert curve is not None
    assert curve.valid_from == max(map(len, prompts))


@settings(max_examples=100, deadline=None)
@given(PROMPTS, st.integers(1, 20))
def test_a_larger_lru_cache_holds_all_that_a_smaller_one_holds(prompts, capacity):
    small, large = (BlockCache(Lru().build(c), c) for c in (capacity, capacity + 1))
    for prompt in prompts:
        small.use(prompt, 0)
        large.use(prompt, 0)
        assert small.resident <= large.resident


def test_a_larger_fifo_cache_may_hit_less():
    """Belady's anomaly, and so why FIFO has no curve."""
    accesses = BlockAccesses.of(trace_of([[b] for b in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)]))
    assert replay(accesses, Fifo(), 3).per_block == 3
    assert replay(accesses, Fifo(), 4).per_block == 2


@settings(max_examples=150, deadline=None)
@given(PROMPTS, st.integers(1, 20))
def test_no_policy_has_more_hits_per_block_than_the_oracle(prompts, capacity):
    accesses = BlockAccesses.of(trace_of(prompts))
    best = replay(accesses, Belady(), capacity).per_block
    for policy in ALL:
        assert replay(accesses, policy, capacity).per_block <= best


class Watched:
    """A policy, and a count of the blocks that it was told of."""

    def __init__(self, config, capacity: int) -> None:
        self.config, self.capacity = config, capacity
        self.blocks: set[int] = set()

    def build(self, num_blocks, uses=None):
        self.policy = self.config.build(num_blocks, uses)
        return self

    def inserted(self, blocks, positions, now_ns):
        assert not self.blocks & set(blocks)
        self.blocks |= set(blocks)
        assert len(self.blocks) <= self.capacity
        self.policy.inserted(blocks, positions, now_ns)

    def removed(self, blocks):
        assert self.blocks >= set(blocks)
        self.blocks -= set(blocks)
        self.policy.removed(blocks)

    def __getattr__(self, name):
        return getattr(self.policy, name)


@pytest.mark.parametrize("config", ALL, ids=str)
@settings(max_examples=60, deadline=None)
@given(prompts=PROMPTS, capacity=st.integers(1, 12), tail_first=st.booleans())
def test_no_policy_holds_more_than_its_capacity(config, prompts, capacity, tail_first):
    watched = Watched(config, capacity)
    hits = replay(BlockAccesses.of(trace_of(prompts)), watched, capacity, tail_first=tail_first)
    assert hits.leading_run >= 0
    assert hits.tokens <= hits.leading_run * B
    if not config.name.startswith("ttl"):
        unique = len({b for p in prompts for b in p})
        assert len(watched.blocks) == min(unique, capacity)  # nothing is given up without need


@settings(max_examples=100, deadline=None)
@given(PROMPTS)
def test_where_all_fits_all_policies_hit_the_same(prompts):
    trace = trace_of(prompts, gap_s=0.1)
    accesses = BlockAccesses.of(trace)
    expected = lru_curve(accesses).infinite
    repeats = sum(map(len, prompts)) - len({b for p in prompts for b in p})
    assert expected.per_block == repeats
    for policy in ALL:
        assert replay(accesses, policy, 1000) == expected
        assert replay(accesses, policy, 1000, tail_first=True) == expected


@settings(max_examples=100, deadline=None)
@given(PREFIX_PROMPTS, st.data())
def test_tenants_never_hit_each_other(prompts, data):
    """With room for all, the hits together are the sum of the hits of each tenant alone."""
    tenant = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(prompts), max_size=len(prompts))))
    trace = trace_of(prompts, tenant=tenant)
    together = BlockAccesses.of(trace)
    alone = [BlockAccesses.of(trace.select(np.flatnonzero(tenant == code))) for code in range(3)]
    for policy in (Lru(), LengthAware(), Belady()):
        each = np.array([replay(part, policy, 1000) for part in alone if len(part)])
        assert tuple(each.sum(axis=0)) == replay(together, policy, 1000)
    owners: dict[int, set[int]] = {}
    for block, owner in zip(
        together.blocks.tolist(), np.repeat(tenant, np.diff(together.offsets)), strict=True
    ):
        owners.setdefault(block, set()).add(int(owner))
    assert all(len(who) == 1 for who in owners.values())


def test_tenants_share_the_capacity():
    apart = BlockAccesses.of(trace_of([[1, 2], [1, 2], [1, 2], [1, 2]], tenant=[0, 1, 0, 1]))
    assert lru_curve(apart).at(3) == (0, 0, 0)  # four different blocks, each evicted before it is used again
    assert lru_curve(apart).at(4) == (4, 4, 2 * (2 * B - 1))


def test_a_leading_run_ends_at_the_first_gap():
    """Block 1 is gone when the third prompt begins, so that 2 and 3, still there, are no use to it."""
    accesses = BlockAccesses.of(trace_of([[1, 2, 3], [9], [1, 2, 3]]))
    assert replay(accesses, Lru(), 3) == (0, 0, 0)  # taking 1 in again pushes 2 out, and so on
    assert replay(accesses, Belady(), 3).leading_run > 0
    assert replay(accesses, Fifo(), 3) == (0, 0, 0)
    assert replay(accesses, Lru(), 3, tail_first=True) == (2, 2, 2 * B)  # 3 went instead of 1


def test_tokens_stop_at_the_length_of_the_prompt():
    accesses = BlockAccesses.of(trace_of([[1, 2], [1, 2]]))
    assert lru_curve(accesses).infinite == (2, 2, 2 * B - 1)


def test_blocks_expire_by_the_time_of_the_trace():
    accesses = BlockAccesses.of(trace_of([[1], [1], [2], [1]]))  # a second apart
    assert replay(accesses, Ttl(ttl_s=2), 9).per_block == 2
    assert replay(accesses, Ttl(ttl_s=1.9), 9).per_block == 1
    assert replay(accesses, Ttl(ttl_s=2, since="insertion"), 9).per_block == 1


def test_time_is_needed_where_blocks_expire():
    trace = Trace.build([0], [4], [1], hashes=BlockHashes.build(4, [1], [7]), has_arrivals=False)
    with pytest.raises(ConfigError, match="no arrival times"):
        replay(BlockAccesses.of(trace), Ttl(), 1)
    assert replay(BlockAccesses.of(trace), Lru(), 1) == (0, 0, 0)


def test_a_trace_without_hashes_is_refused():
    with pytest.raises(InputError, match="no prefix block hashes"):
        BlockAccesses.of(Trace.build([0], [4], [1], source="mine.csv"))


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_cache_has_at_least_one_block(capacity):
    accesses = BlockAccesses.of(trace_of([[1]]))
    with pytest.raises(ConfigError, match="at least 1"):
        replay(accesses, Lru(), capacity)
    with pytest.raises(ConfigError, match="at least 1"):
        study(accesses, [parse_eviction("lru")], [capacity])


def test_smaller_blocks_share_as_much_but_for_the_partial_ones():
    trace = expand_hashes(trace_of([[1, 2], [1, 2], [1, 3]]), 1)
    hits = lru_curve(BlockAccesses.of(trace)).infinite
    assert hits.per_block == hits.tokens == (2 * B - 1) + B


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 70).flatmap(lambda n: st.permutations(range(n))))
def test_larger_before(permutation):
    values = np.array(permutation, dtype=np.int64)
    expected = [int((values[:i] > values[i]).sum()) for i in range(values.size)]
    assert larger_before(values).tolist() == expected


def test_stack_distances_by_hand():
    last = last_uses(np.array([5, 6, 7, 6, 6, 5]))
    assert last.tolist() == [-1, -1, -1, 1, 3, 0]
    assert stack_distances(last).tolist() == [6, 6, 6, 1, 0, 2]


def test_the_capacity_for_a_share_counts_whole_hits():
    """There and back: a cache of c blocks hits c times, of 50."""
    blocks = [*range(50), *reversed(range(50))]
    curve = lru_curve(BlockAccesses.of(trace_of([[b] for b in blocks])))
    assert curve.per_block.tolist() == list(range(51))
    assert curve.capacity_for(0.5) == 25
    assert curve.capacity_for(0.51) == 26
    assert curve.capacity_for(0.99) == 50
    assert curve.capacity_for(0.14) == 7  # although 0.14 x 50 is above 7 in floats


def test_the_capacity_for_a_share_is_the_smallest():
    rng = np.random.default_rng(3)
    accesses = BlockAccesses.of(trace_of([[int(b)] for b in rng.zipf(1.3, 4000) % 500]))
    curve = lru_curve(accesses)
    for share in (0.1, 0.5, 0.9, 1.0):
        capacity = curve.capacity_for(share)
        assert replay(accesses, Lru(), capacity).per_block >= share * curve.infinite.per_block
        assert replay(accesses, Lru(), capacity - 1).per_block < share * curve.infinite.per_block
