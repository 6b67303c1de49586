"""Every eviction policy against its definition, written down naively: whom it names, whatever happened before."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kv.eviction import Belady, Fifo, LengthAware, Lfu, LfuPerfect, Lru, LruLfu, Ttl
from sim.kv.eviction.ranking import Ranking
from workloads.errors import ConfigError

TTL_NS = 5_000_000_000
HALF_LIFE = 3.0


@dataclass
class Block:
    """All that ever happened to a block since it came."""

    came: int
    came_ns: int
    uses: list[int] = field(default_factory=list)  # when, in uses of the cache
    recent: int = 0
    recent_ns: int = 0
    position: int = 0
    held: bool = False


@dataclass
class Model:
    """A cache that remembers everything and sorts when asked. `clock` counts uses, `recency` releases too."""

    future: list[int]
    blocks: dict[int, Block] = field(default_factory=dict)
    ever: dict[int, int] = field(default_factory=dict)
    clock: int = 0
    recency: int = 0

    def use(self, block: int, position: int, now_ns: int) -> None:
        self.clock += 1
        record = self.blocks.setdefault(block, Block(self.clock, now_ns))
        record.uses.append(self.clock)
        record.position = position
        self.ever[block] = self.ever.get(block, 0) + 1
        self.touch(block, now_ns)

    def touch(self, block: int, now_ns: int) -> None:
        self.recency += 1
        self.blocks[block].recent = self.recency
        self.blocks[block].recent_ns = now_ns

    def next_use(self, block: int) -> int:
        """The place of the next use in the future that was told, by how often the block was used so far."""
        places = [place for place, one in enumerate(self.future) if one == block]
        done = self.ever[block]
        return places[done] if done < len(places) else len(self.future)

    def victims(self, key) -> list[int]:
        return sorted((b for b, record in self.blocks.items() if not record.held), key=lambda b: key(self, b))


def fading(model: Model, block: int) -> float:
    """The logarithm of the score, since the score itself may be too small for a float."""
    uses = model.blocks[block].uses
    return uses[-1] / HALF_LIFE + math.log2(sum(2 ** ((use - uses[-1]) / HALF_LIFE) for use in uses))


POLICIES = {
    "lru": (Lru(), lambda m, b: m.blocks[b].recent),
    "fifo": (Fifo(), lambda m, b: m.blocks[b].came),
    "lfu": (Lfu(), lambda m, b: (len(m.blocks[b].uses), m.blocks[b].recent)),
    "lfu_perfect": (LfuPerfect(), lambda m, b: (m.ever[b], m.blocks[b].recent)),
    "length_aware": (
        LengthAware(),
        lambda m, b: (len(m.blocks[b].uses), -m.blocks[b].position, m.blocks[b].recent),
    ),
    "lru_lfu": (LruLfu(half_life=HALF_LIFE), lambda m, b: (fading(m, b), m.blocks[b].recent)),
    "ttl": (Ttl(ttl_s=5), lambda m, b: (m.blocks[b].recent_ns, m.blocks[b].recent)),
    "ttl_insertion": (
        Ttl(ttl_s=5, since="insertion"),
        lambda m, b: (m.blocks[b].came_ns, m.blocks[b].came),
    ),
    "belady": (Belady(), lambda m, b: (-m.next_use(b), m.blocks[b].recent)),
}

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "use", "hold", "release", "remove", "evict", "wait"]),
        st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True),
    ),
    max_size=60,
)


def follow(name: str, steps, blocks_of_the_future: int = 12) -> None:
    """Do the steps with policy and model; they must name the same victims after each."""
    config, key = POLICIES[name]
    future = random.Random(1).choices(range(blocks_of_the_future), k=40)  # shorter than what comes
    policy, model, now_ns = config.build(1, future), Model(future), 0
    for kind, blocks in steps:
        if kind == "wait":
            now_ns += 1_000_000_000 * blocks[0]
        elif kind == "evict":
            drop(policy, model, model.victims(key)[: len(blocks)])
        elif kind == "use":
            use(policy, model, blocks, now_ns)
        else:
            change_holders(policy, model, kind, [b for b in blocks if b in model.blocks], now_ns)
        expected = model.victims(key)
        assert policy.victims(1) == expected[:1]
        assert policy.victims(3) == expected[:3]
        assert policy.victims(99) == expected
        check_expiry(name, policy, model, expected, now_ns)


def use(policy, model, blocks, now_ns) -> None:
    new = [b for b in blocks if b not in model.blocks]
    there = [b for b in blocks if b in model.blocks]
    for run, tell in ((new, policy.inserted), (there, policy.accessed)):
        tell(run, [b % 5 for b in run], now_ns)
        for block in run:
            model.use(block, block % 5, now_ns)


def change_holders(policy, model, kind, blocks, now_ns) -> None:
    free = [b for b in blocks if not model.blocks[b].held]
    held = [b for b in blocks if model.blocks[b].held]
    if kind == "hold":
        policy.held(free)
    elif kind == "release":
        policy.released(held, now_ns)
        for block in held:
            model.touch(block, now_ns)
    else:
        drop(policy, model, free)
    for block in {"hold": free, "release": held}.get(kind, ()):
        model.blocks[block].held = kind == "hold"


def drop(policy, model, blocks) -> None:
    policy.removed(blocks)
    for block in blocks:
        del model.blocks[block]


def check_expiry(name, policy, model, free, now_ns) -> None:
    if not name.startswith("ttl"):
        assert policy.expired(now_ns) == []
        return
    start = {"ttl": "recent_ns", "ttl_insertion": "came_ns"}[name]
    old = [b for b in free if getattr(model.blocks[b], start) + TTL_NS < now_ns]
    assert policy.expired(now_ns) == old


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_a_policy_names_whom_its_definition_names(name, steps):
    follow(name, steps)


@pytest.mark.parametrize("name", POLICIES)
def test_a_long_life_changes_nothing(name):
    """Long enough for heaps to be rebuilt, with more blocks than a short test has."""
    rng = random.Random(7)
    kinds = ["use"] * 6 + ["hold", "release", "remove", "evict", "wait"]
    steps = [(rng.choice(kinds), rng.sample(range(120), rng.randint(1, 6))) for _ in range(1500)]
    follow(name, steps, 120)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=80), st.integers(1, 9))
def test_lru_lfu_lies_between_its_ends(uses, num_blocks):
    """A half-life of at most one use is LRU, an infinite one LFU, also by the last bit of a float."""
    for half_life, end in ((0, Lru()), (1 / num_blocks, Lru()), (math.inf, Lfu())):
        mixed, pure = LruLfu(half_life=half_life).build(num_blocks), end.build(num_blocks)
        seen: set[int] = set()
        for block in uses:
            for policy in (mixed, pure):
                (policy.accessed if block in seen else policy.inserted)([block], [0], 0)
            seen.add(block)
            assert mixed.victims(8) == pure.victims(8)


def test_the_half_life_follows_the_size_of_the_cache():
    def second_victim(num_blocks: int) -> int:
        policy = LruLfu(half_life=1.0).build(num_blocks)
        policy.inserted([1], [0], 0)
        policy.accessed([1], [0], 0)  # two uses, then ten others of one use each
        policy.inserted(range(10, 20), range(10), 0)
        return policy.victims(11).index(1)

    assert second_victim(1) == 0  # in a tiny cache the two uses are long past
    assert second_victim(1000) == 10  # in a large one they still count almost in full


def test_an_expired_block_stays_while_it_is_held():
    policy = Ttl(ttl_s=1, since="insertion").build(10)
    policy.inserted([1, 2], [0, 1], 0)
    policy.held([1])
    assert policy.expired(1_000_000_000) == []  # after exactly a second both can still be hit
    assert policy.expired(1_000_000_001) == [2]
    policy.released([1], 5_000_000_000)
    assert policy.expired(5_000_000_000) == [1, 2]


def test_an_oracle_without_a_future_is_refused():
    with pytest.raises(ConfigError, match="belady must know"):
        Belady().build(10)


@pytest.mark.parametrize("config", [Fifo(), Lfu(), LruLfu(), LengthAware(), Ttl()], ids=str)
def test_memory_does_not_grow_with_the_blocks_that_came_and_went(config):
    """Of the policies with a heap, only lfu_perfect and belady remember more, and say so."""
    policy = config.build(8)
    for turn in range(5000):
        policy.inserted([turn], [0], turn)
        policy.held([turn])
        policy.released([turn], turn)
        if turn >= 8:
            policy.removed([turn])  # from the end of the order, while the head stays
    assert len(pickle.dumps(policy)) < 10_000
    assert policy.victims(99) == list(range(8))


def test_a_rank_may_come_back():
    ranking = Ranking()
    for rank in ((5, 1), (3, 1), (5, 1), (6, 2)):
        ranking.put(rank)
    assert ranking.first(3) == [1, 2]
    assert ranking.below((6,)) == [1]
    assert 1 in ranking
    assert 3 not in ranking


def test_lfu_perfect_knows_a_block_that_comes_back():
    policies = [config.build(8) for config in (Lfu(), LfuPerfect())]
    for policy in policies:
        policy.inserted([1], [0], 0)
        policy.accessed([1], [0], 0)
        policy.removed([1])
        policy.inserted([1, 2], [0, 0], 0)
    assert [policy.victims(1) for policy in policies] == [[1], [2]]
