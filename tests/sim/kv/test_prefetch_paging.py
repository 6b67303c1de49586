"""KV in host memory: a naive page cache decides every read and every byte the same; what must hold for each policy."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InvariantError
from sim.kv.access import Full, SlidingWindow, TopK
from sim.kv.access.reads import Reads
from sim.kv.paging.account import PagingAccount
from sim.kv.paging.host_paging import HostPaging
from sim.kv.paging.page_cache import PageCache
from sim.kv.paging.study import Load, Outcome, run, table
from sim.kv.prefetch import AttentionWeighted, NoPrefetch, Oracle, Scheduled, Stride
from sim.kv.prefetch.decision import NO_PAGES, Decision, Pages

BLOCK = 4
GROUPS = 2
POLICIES = [
    NoPrefetch(),
    Stride(),
    AttentionWeighted(),
    AttentionWeighted(second_level_weight=0.0),
    Scheduled(),
    Oracle(),
    Oracle(depth=3),
]
Page = tuple[int, int, int]  # sequence, group, block


class Scattered:
    """Reads any pages, the query's own among them."""

    groups = GROUPS
    block_size = BLOCK

    def reads(self, sequence: int, context_tokens: int) -> Reads:
        rng = np.random.default_rng([sequence, context_tokens])
        mask = rng.random((GROUPS, -(-context_tokens // BLOCK))) < 0.5
        mask[:, -1] = True
        return Reads.of_mask(mask)

    def known(self, sequence: int, context_tokens: int) -> Reads:
        return Reads.nothing()


class Scripted:
    """Names what the test says, by keys of sequences."""

    def __init__(self) -> None:
        self.fetch: list[Page] = []
        self.keep: list[Page] = []

    def plan(self, view) -> Decision:
        place = {key: i for i, (key, _) in enumerate(view.sequences)}

        def pages(named: list[Page]) -> Pages:
            rows = [(place[key], group, block) for key, group, block in named if key in place]
            return Pages(*np.array(rows, dtype=np.int64).reshape(-1, 3).T) if rows else NO_PAGES

        return Decision(pages(self.fetch), pages(self.keep))


@dataclass
class Naive:
    """The same cache, a page at a time."""

    capacity: int
    page_bytes: int
    cache: OrderedDict[Page, bool] = field(default_factory=OrderedDict)  # value: prefetched and not read yet
    kept: set[Page] = field(default_factory=set)
    pushed: set[Page] = field(default_factory=set)
    queue: list[Page] = field(default_factory=list)
    come: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    account: PagingAccount = field(default_factory=PagingAccount)

    def drop(self, page: Page) -> None:
        if self.cache.pop(page):
            self.account.wasted_bytes += self.page_bytes
            self.account.unread_bytes -= self.page_bytes

    def evict_one(self, kept: bool) -> Page | None:
        for page in self.cache:
            if kept or page not in self.kept:
                self.drop(page)
                return page
        return None

    def write(self, born: list[Page]) -> None:
        born = born[-self.capacity :]
        for _ in range(len(self.cache) + len(born) - self.capacity):
            if self.evict_one(kept=False) is None:
                self.evict_one(kept=True)
        self.cache.update(dict.fromkeys(born, False))

    def begin_step(self, access, sequences) -> int:
        before = self.account.blocking_bytes
        have = {key: self.blocks.get(key, 0) for key, _ in sequences}
        self.blocks.update((key, -(-context // BLOCK)) for key, context in sequences)
        for group in range(GROUPS):
            self.write([(key, group, block) for key in have for block in range(have[key], self.blocks[key])])
            pages = []
            for key, context in sequences:
                reads = access.reads(key, context)
                pages += [(key, group, block) for block in reads.block[reads.group == group].tolist()]
            self.read(pages)
        self.account.steps += 1
        return self.account.blocking_bytes - before

    def read(self, pages: list[Page]) -> None:
        account = self.account
        account.reads += len(pages)
        missing = []
        for page in pages:
            if page not in self.cache:
                missing.append(page)
                continue
            account.hits += 1
            if self.cache[page]:
                account.prefetch_hits += 1
                account.useful_bytes += self.page_bytes
                account.unread_bytes -= self.page_bytes
            self.cache[page] = False
            self.cache.move_to_end(page)
        for page in missing:
            if page in self.queue:
                come = self.come if page == self.queue[0] else 0
                if come:
                    self.come = 0
                    account.in_flight_bytes -= come
                self.queue.remove(page)
                account.late += 1
                account.late_bytes += self.page_bytes
                account.waited_bytes += self.page_bytes - come
                account.issued_bytes += self.page_bytes - come
            else:
                account.demanded += 1
                account.demand_bytes += self.page_bytes
                account.evicting_bytes += self.page_bytes * (page in self.pushed)
            self.pushed.discard(page)
        room = self.capacity - len(self.cache)
        for _ in range(max(len(missing) - room, 0)):
            room += self.evict_one(kept=False) is not None
        room = self.capacity - len(self.cache)
        for page in missing[max(len(missing) - room, 0) :]:
            self.cache[page] = False

    def plan(self, fetch: list[Page], keep: list[Page]) -> int:
        def there(page: Page) -> bool:
            key, _, block = page
            return key in self.batch and 0 <= block < self.blocks[key]

        head = self.queue[:1] if self.come else []
        rest = self.queue[len(head) :]
        self.kept = set(filter(there, keep))
        room = self.capacity - sum(page in self.kept for page in self.cache) - len(head)
        wanted: list[Page] = []
        for page in fetch:
            if there(page) and page not in self.cache and page not in head and page not in wanted:
                wanted.append(page)
        wanted = wanted[: max(room, 0)]
        self.account.withdrawn_bytes += self.page_bytes * sum(page not in wanted for page in rest)
        self.queue = head + wanted
        return len(self.queue) * self.page_bytes - self.come

    def arrived(self, num_bytes: int) -> None:
        self.account.issued_bytes += num_bytes
        self.account.in_flight_bytes -= self.come
        complete, self.come = divmod(self.come + num_bytes, self.page_bytes)
        self.account.in_flight_bytes += self.come
        landed, self.queue = self.queue[:complete], self.queue[complete:]
        for _ in range(len(self.cache) + complete - self.capacity):
            out = self.evict_one(kept=False) or self.evict_one(kept=True)
            self.pushed.add(out)
        for page in landed:
            self.pushed.discard(page)
            self.cache[page] = True
            self.account.unread_bytes += self.page_bytes

    def end(self, key: int) -> None:
        for page in [page for page in self.cache if page[0] == key]:
            self.drop(page)
        if self.come and self.queue[0][0] == key:
            self.account.wasted_bytes += self.come
            self.account.in_flight_bytes -= self.come
            self.come = 0
            del self.queue[0]
        gone = [page for page in self.queue if page[0] == key]
        self.account.withdrawn_bytes += self.page_bytes * len(gone)
        self.queue = [page for page in self.queue if page[0] != key]
        for pages in (self.kept, self.pushed):
            pages -= {page for page in pages if page[0] == key}
        self.blocks.pop(key, None)


pages_named = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(-1, 8)), max_size=14)
rounds = st.lists(
    st.tuples(
        st.sets(st.integers(0, 4), min_size=1),  # sequences of the step
        st.lists(st.integers(0, 4), max_size=2),  # sequences that end after it
        pages_named,
        pages_named,
        st.floats(0, 1),  # share of the queue that comes
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(rounds, st.integers(1, 40), st.integers(1, 7), st.integers(0, 12))
def test_every_read_and_every_byte_is_as_in_a_naive_page_cache(rounds, capacity, page_bytes, prompt):
    script = Scripted()
    access = Scattered()
    paging = HostPaging(access, script, capacity=capacity, page_bytes=page_bytes)
    naive = Naive(capacity, page_bytes)
    context: dict[int, int] = {}
    for batch, ended, fetch, keep, share in rounds:
        for key in batch:
            context[key] = context.get(key, prompt) + 1
        sequences = [(key, context[key]) for key in sorted(batch)]
        naive.batch = batch
        assert paging.begin_step(sequences) == naive.begin_step(access, sequences)
        script.fetch, script.keep = fetch, keep
        queued = paging.plan_prefetches()
        assert queued == naive.plan(fetch, keep)
        for come in (round(queued * share / 2), round(queued * share) - round(queued * share / 2)):
            paging.arrived(come)
            naive.arrived(come)
        for key in ended:
            context.pop(key, None)
            paging.end(key)
            naive.end(key)
        assert asdict(paging.account) == asdict(naive.account)
        assert paging.account.imbalance_bytes == 0
        assert paging.account.reads == paging.account.hits + paging.account.late + paging.account.demanded
    for key in range(5):
        paging.end(key)
    account = paging.account
    assert account.unread_bytes == account.in_flight_bytes == 0
    assert account.issued_bytes == account.useful_bytes + account.late_bytes + account.wasted_bytes


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), unique=True, max_size=8), max_size=20), st.integers(1, 10))
def test_without_a_prefetcher_it_is_an_lru_cache(steps, capacity):
    class OneGroup:
        groups = 1
        block_size = BLOCK

        def reads(self, sequence: int, context_tokens: int) -> Reads:
            blocks = np.array(sorted(steps[context_tokens - 48]), dtype=np.int64)
            return Reads(0 * blocks, blocks, np.ones(blocks.size))

    access = OneGroup()
    paging = HostPaging(access, NoPrefetch().build(access), capacity=capacity, page_bytes=1)
    lru = OrderedDict.fromkeys(range(12 - min(capacity, 12), 12))  # of the prompt, what was written last
    hits = 0
    for step, blocks in enumerate(steps):
        context = 48 + step
        for new in range(len(lru) and -(-(context - 1) // BLOCK), -(-context // BLOCK)):
            if new >= 12:
                if len(lru) == capacity:
                    lru.popitem(last=False)
                lru[new] = None
        paging.begin_step([(0, context)])
        there = [block for block in sorted(blocks) if block in lru]
        hits += len(there)
        for block in there + [block for block in sorted(blocks) if block not in there]:
            if block in lru:
                lru.move_to_end(block)
                continue
            if len(lru) == capacity:
                lru.popitem(last=False)
            lru[block] = None
        assert paging.account.hits == hits


# Laws of the policies.


def drive(access, policy, *, capacity, sequences=3, steps=25, prompt=90, budget=None) -> list[PagingAccount]:
    """Account of each step alone; `budget` bytes of the queue come in a step, by default all."""
    paging = HostPaging(access, policy.build(access), capacity=capacity, page_bytes=8)
    accounts, before = [], PagingAccount()
    for step in range(steps):
        paging.begin_step([(key, prompt + 13 * key + step) for key in range(sequences)])
        queued = paging.plan_prefetches()
        paging.arrived(queued if budget is None else min(queued, budget))
        assert paging.account.imbalance_bytes == 0
        after = PagingAccount(**asdict(paging.account))
        accounts.append(
            PagingAccount(
                *(b - a for a, b in zip(asdict(before).values(), asdict(after).values(), strict=True))
            )
        )
        before = after
    return accounts


def most_read(access, *, sequences=3, steps=26, prompt=90) -> int:
    return max(
        sum(access.reads(key, prompt + 13 * key + step).block.size for key in range(sequences))
        for step in range(steps)
    )


@pytest.mark.parametrize("pattern", [Full(), SlidingWindow(window_tokens=40, sink_tokens=5)])
def test_scheduled_never_waits_where_two_steps_fit_and_bandwidth_suffices(pattern):
    access = pattern.build(4, BLOCK, 0)
    accounts = drive(access, Scheduled(), capacity=2 * most_read(access))
    assert sum(account.blocking_bytes for account in accounts[1:]) == 0
    assert sum(account.reads for account in accounts) > 0


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [Full(), SlidingWindow(window_tokens=40), TopK(churn=0.2), TopK(fraction=0.3, churn=0.05)]
    ),
    st.sampled_from(POLICIES),
    st.integers(1, 260),
)
def test_nobody_hits_more_than_who_knows_what_comes(pattern, policy, capacity):
    """With bandwidth to spare, all that fits of the next step is there: more than fits cannot be.

    Told of steps that open no block, since pages just written are there for everybody.
    """
    access = pattern.build(4, BLOCK, 0)
    theirs = drive(access, policy, capacity=capacity)
    best = drive(access, Oracle(), capacity=capacity)
    opening = [any((90 + 13 * key + step) % BLOCK == 1 for key in range(3)) for step in range(25)]
    assert opening.count(False) > 5
    for account, bound, opens in zip(theirs[1:], best[1:], opening[1:], strict=True):
        assert account.reads == bound.reads
        if opens:
            continue
        assert bound.hits == min(bound.reads, capacity)
        assert account.hits <= bound.hits


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("budget", [0, 5, 100])
def test_whatever_comes_every_byte_has_one_fate(policy, budget):
    access = TopK(churn=0.3, zipf_exponent=2.0).build(4, BLOCK, 3)
    for account in drive(access, policy, capacity=40, budget=budget):
        assert account.reads == account.hits + account.late + account.demanded
        assert account.issued_bytes - account.waited_bytes <= budget
        if budget == 0:
            assert account.prefetch_hits == 0


def test_what_a_prefetch_pushes_out_and_is_wanted_again_is_told():
    class InTurn:
        groups = 1
        block_size = BLOCK
        asked = ([0, 1], [0])

        def reads(self, sequence: int, context_tokens: int) -> Reads:
            blocks = np.array(self.asked[context_tokens - 16], dtype=np.int64)
            return Reads(0 * blocks, blocks, np.ones(blocks.size))

    script = Scripted()
    paging = HostPaging(InTurn(), script, capacity=2, page_bytes=10)
    assert paging.begin_step([(0, 16)]) == 20  # of 4 blocks written, the last two were there
    script.fetch = [(0, 0, 3)]
    assert paging.plan_prefetches() == 10
    paging.arrived(10)
    assert paging.begin_step([(0, 17)]) == 10
    assert paging.account.evicting_bytes == 10
    assert paging.account.unread_bytes == 0
    assert paging.account.wasted_bytes == 10  # by block 0 or by the new block 4, whichever came second


def test_a_driver_that_miscounts_is_told():
    access = Full().build(1, BLOCK, 0)
    paging = HostPaging(access, NoPrefetch().build(access), capacity=4, page_bytes=10)
    with pytest.raises(InvariantError, match="a step that began"):
        paging.plan_prefetches()
    with pytest.raises(InvariantError, match="1 bytes arrived of 0 queued"):
        paging.arrived(1)
    paging.begin_step([(0, 20)])
    with pytest.raises(InvariantError, match="sequence 0 shrinks from 5 to 4 blocks"):
        paging.begin_step([(0, 16)])
    with pytest.raises(InvariantError, match="room for 0 pages"):
        HostPaging(access, NoPrefetch().build(access), capacity=0, page_bytes=10)


def test_the_order_of_use_survives_many_uses():
    """More uses than the log is long at first: it is compacted, and who was used last stays so."""
    cache = PageCache(10)
    cache.reserve(100)
    cache.insert(np.arange(10))
    for step in range(3000):
        cache.touch(np.array([step % 9, (step + 4) % 9]))
    with pytest.raises(InvariantError, match="do not fit"):
        cache.insert(np.array([50]))
    latest_first = OrderedDict.fromkeys((step + d) % 9 for step in range(2999, 2900, -1) for d in (4, 0))
    expected = [9, *reversed(latest_first)]
    assert cache.evict(10).tolist() == expected


# The study.

LOAD = Load(
    prompts=[400, 500],
    steps=30,
    groups=4,
    block_size=16,
    page_bytes=65_536,
    resident=0.5,
    step_ns=2_000_000,
    bytes_per_s=10_000_000_000,
)


def test_a_step_waits_for_its_bytes_and_no_longer():
    outcome = run(LOAD, TopK(fraction=0.7), NoPrefetch())
    waited = outcome.elapsed_ns - LOAD.steps * LOAD.step_ns
    exact = outcome.account.demand_bytes / LOAD.bytes_per_s * 1e9
    assert exact <= waited < exact + LOAD.steps
    assert outcome.account.demand_bytes > 0
    assert outcome.prefetch_share == 0
    assert outcome.link_share == pytest.approx(exact / outcome.elapsed_ns, rel=1e-6)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_link_carries_no_more_than_it_can(policy):
    outcome = run(LOAD, TopK(fraction=0.7, churn=0.5), policy)
    assert 0 <= outcome.prefetch_share <= outcome.link_share <= 1
    assert outcome.account.imbalance_bytes == 0


def test_twice_the_bandwidth_and_half_the_step_is_the_same_in_half_the_time():
    fast = Load(**{**asdict(LOAD), "step_ns": 1_000_000, "bytes_per_s": 20_000_000_000})
    for policy in POLICIES:
        one, two = run(LOAD, TopK(fraction=0.5), policy), run(fast, TopK(fraction=0.5), policy)
        assert one.account == two.account
        assert one.elapsed_ns == pytest.approx(2 * two.elapsed_ns, abs=2 * LOAD.steps)


def test_who_looks_where_attention_is_gains_more_for_less_bandwidth_than_a_stride():
    """The ordering of SYSTEMS K14, where few pages are read and HBM holds fewer than a step reads."""
    load = Load(
        prompts=[4000 + 250 * i for i in range(8)],
        steps=100,
        groups=8,
        block_size=16,
        page_bytes=262_144,
        resident=0.02,
        step_ns=8_000_000,
        bytes_per_s=50_000_000_000,
    )
    policies = (NoPrefetch(), Stride(), AttentionWeighted(), Scheduled(), Oracle())
    found = {policy.name: run(load, TopK(blocks=8), policy) for policy in policies}
    stride, weighted = found["stride"], found["attention_weighted"]
    assert found["none"].account.hit_rate < stride.account.hit_rate < weighted.account.hit_rate
    assert weighted.prefetch_share < stride.prefetch_share
    times = [outcome.mean_step_ms for outcome in found.values()]
    assert times == sorted(times, reverse=True)
    lines = table(found).splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(found)


def test_an_outcome_of_nothing_prefetched_has_no_division_by_zero():
    outcome = Outcome(LOAD, PagingAccount(), np.array([1]))
    assert outcome.account.hit_rate == 1
    assert "0%" in table({"none": outcome})
