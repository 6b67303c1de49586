"""An engine whose prefix cache has host memory and disk below it: laws, byte by byte, and against engines without."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.batching.length_grouped import LengthGrouped
from sim.batching.prefix_first import PrefixFirst
from sim.batching.static_batch import StaticBatch
from sim.engine.clock import Clock
from sim.kv.eviction.fifo import Fifo
from sim.kv.eviction.length_aware import LengthAware
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.ttl import Ttl
from sim.kv.prefetch.session import Session
from sim.links.network import Network
from tests.sim.doubles import AffineCost, EveryOther
from tests.sim.engines import trace_of, with_prefixes
from tests.sim.exactness import assert_engine_exact
from tests.sim.test_prefix_cache import loads, workload
from tests.sim.tiers import BLOCK, TierMachine, tier_setup
from workloads.answers import sequence_hashes
from workloads.trace import BlockHashes, Trace

tiers = st.builds(
    tier_setup,
    host_blocks=st.sampled_from([1, 4, 12, 300]),
    disk_blocks=st.sampled_from([0, 0, 5, 40]),
    write=st.sampled_from(["through", "back"]),
    reload=st.sampled_from(["cheaper", "always"]),
    preempt=st.sampled_from(["recompute", "swap", "cheaper"]),
    eviction=st.sampled_from([None, Lfu(), Fifo(), LengthAware(), Ttl(ttl_s=1e-6)]),
)


busy_sessions = st.lists(
    st.lists(st.tuples(st.integers(0, 40), st.integers(6, 14), st.integers(3, 20)), min_size=2, max_size=4),
    min_size=3,
    max_size=6,
)
"""Of each session its turns: (gap before it, in 50 ns; new tokens; output tokens)."""


def machine(load, setup, **options):
    requests, known = workload(load)
    trace = with_prefixes(trace_of(*requests), known, BLOCK)
    return TierMachine(trace, sequence_hashes(trace, BLOCK), setup, **options)


@settings(max_examples=400, deadline=None)
@given(
    load=loads,
    setup=tiers,
    blocks=st.integers(14, 40),
    seats=st.integers(1, 5),
    batcher=st.sampled_from(
        [
            Chunked(),
            Chunked(chunk_tokens=9),
            Continuous(),
            LengthGrouped(groups=2, budget=60),
            PrefixFirst(max_overtaken=2),
        ]
    ),
    eviction=st.sampled_from([None, None, Lfu(), LengthAware()]),
    slowness=st.sampled_from([0, 1, 7]),
)
def test_every_block_read_holds_what_it_should(load, setup, blocks, seats, batcher, eviction, slowness):
    """Whatever moves when: `TierMachine` follows the bytes, the engine's books agree, and all requests finish."""
    run = machine(
        load,
        setup,
        blocks=blocks,
        seats=seats,
        batcher=batcher,
        eviction=eviction,
        transfer_ns=lambda transfer: slowness * transfer.num_bytes,
    ).run()
    core = run.core
    while run.flying:
        run.now = max(at for at, _, _ in run.flying)
        run._land()
        assert core.schedule(run.now) is None
        run._take()
    assert core.allocator.free_blocks == blocks
    assert core.allocator.stored_tokens == 0
    core.check_integrity()
    account = core.allocator.tier_account(run.now)
    hits = core.prefix_hits + core.preempted_hits
    assert account.queried_tokens == core.prefix_queries + core.preempted_queries
    assert account.hbm_tokens + account.arriving_tokens + account.reloaded_tokens == hits
    assert account.arriving_tokens + account.reloaded_tokens == core.loaded_hits
    assert (account.reloaded + account.swapped_in) * BLOCK == account.reloaded_tokens


@given(
    load=loads,
    setup=tiers,
    blocks=st.integers(14, 40),
    padding=st.booleans(),
    group=st.sampled_from(["none", "length", "prefix"]),
    slowness=st.sampled_from([0, 1, 7]),
)
def test_a_static_batch_waits_for_all_of_its_kv(load, setup, blocks, padding, group, slowness):
    """Who joins is fixed when a batch starts: nobody takes the seat of a sequence that waits for its KV."""
    batcher = StaticBatch(batch_size=2, padding=padding, group_by=group)
    run = machine(
        load,
        setup,
        blocks=blocks,
        seats=5,
        batcher=batcher,
        transfer_ns=lambda transfer: slowness * transfer.num_bytes,
    )
    sizes = []
    run.run(lambda: sizes.append(len(run.core.running) + len(run.core.loading)))
    assert max(sizes) <= 2
    assert padding or run.core.padded_tokens == 0


def turns_trace(load):
    """Turns that repeat their session's prompts and answers, at times of their own."""
    rows = []
    for session, turns in enumerate(load):
        at, history = 20 * session, 0
        for gap, new, output in turns:
            at += 50 * gap + 1
            prompt = history + new
            rows.append((at, prompt, output, session))
            history = prompt + output
    rows.sort()
    arrivals, prompts, outputs, of = (list(column) for column in zip(*rows, strict=True))
    ids = []
    for i, (prompt, session) in enumerate(zip(prompts, of, strict=True)):
        full = prompt // BLOCK
        ids += [1000 * (session + 1) + block for block in range(full)]
        ids += [10**6 + i] * (-(-prompt // BLOCK) - full)
    counts = [-(-prompt // BLOCK) for prompt in prompts]
    return Trace.build(arrivals, prompts, outputs, session=of, hashes=BlockHashes.build(BLOCK, counts, ids))


@settings(max_examples=200, deadline=None)
@given(
    load=busy_sessions,
    setup=tiers,
    blocks=st.integers(18, 32),
    seats=st.integers(1, 5),
    eviction=st.sampled_from([None, Lfu()]),
    slowness=st.sampled_from([0, 1, 7]),
)
def test_sessions_that_come_back_read_what_they_should(load, setup, blocks, seats, eviction, slowness):
    """Most of what tiers do, at once: turns reload what others pushed out, into blocks that are written back."""
    trace = turns_trace(load)
    TierMachine(
        trace,
        sequence_hashes(trace, BLOCK),
        setup,
        blocks=blocks,
        seats=seats,
        eviction=eviction,
        transfer_ns=lambda transfer: slowness * transfer.num_bytes,
    ).run()


@settings(max_examples=200, deadline=None)
@given(
    load=busy_sessions,
    setup=tiers,
    blocks=st.integers(22, 40),
    gap=st.sampled_from([None, 3e-7, 2e-6]),
    lead=st.sampled_from([0.0, 2e-7]),
    share=st.sampled_from([0.1, 1.0]),
    slowness=st.sampled_from([0, 1, 7]),
    eviction=st.sampled_from([None, Lfu()]),
)
def test_every_prefetched_block_has_one_fate(load, setup, blocks, gap, lead, share, slowness, eviction):
    """And the bytes are right, whatever is brought back when."""
    trace = turns_trace(load)
    run = TierMachine(
        trace,
        sequence_hashes(trace, BLOCK),
        setup,
        blocks=blocks,
        eviction=eviction,
        prefetch=Session(expected_gap_s=gap, lead_s=lead, share=share),
        transfer_ns=lambda transfer: slowness * transfer.num_bytes,
    ).run()
    core = run.core
    fates = core.allocator.tier_account(0).prefetch
    unread = core.allocator._prefetch._unread
    assert fates.unread == len(unread)
    assert core.allocator._index.unknown(np.array(sorted(unread), dtype=np.int64)).sum() == 0
    assert fates.issued <= core.allocator.account.prefetched
    assert min(fates.useful, fates.late, fates.wasted, fates.evicting) >= 0


def three_turns(prefetch, last=0):
    """A session of 40 tokens, another of 48 at 8,000 ns that pushes most of it out of HBM, and one's next turn."""
    known = [*range(10)], [*range(100, 112)]
    trace = Trace.build(
        [0, 8_000, 20_000],
        [40, 48, len(known[last]) * BLOCK + 4],
        [5, 5, 5],
        session=[0, 1, last],
        hashes=BlockHashes.build(
            BLOCK, [10, 12, len(known[last]) + 1], [*known[0], *known[1], *known[last], 99]
        ),
    )
    hashes = sequence_hashes(trace, BLOCK)
    run = TierMachine(trace, hashes, tier_setup(100, reload="always"), blocks=16, prefetch=prefetch).run()
    return run.core.allocator


def test_a_turn_finds_what_was_brought_back_for_it():
    """Eight of its blocks were lost. They take 800 ns to come, and are sent for 5,000 ns before the turn."""
    without = three_turns(None)
    assert (without.account.hbm_tokens, without.account.host_tokens) == (12, 28)
    brought = three_turns(Session(expected_gap_s=19.5e-6, lead_s=5e-6, share=1.0))
    assert (brought.account.hbm_tokens, brought.account.host_tokens) == (40, 0)
    fates = brought.tier_account(0).prefetch
    assert (fates.useful, fates.late, fates.evicting) == (7, 0, 0)


def test_a_turn_that_comes_too_early_waits_for_the_rest():
    """They are sent for 200 ns before."""
    brought = three_turns(Session(expected_gap_s=19.5e-6, lead_s=2e-7, share=1.0))
    account, fates = brought.account, brought.tier_account(0).prefetch
    assert (account.hbm_tokens, account.arriving_tokens, account.host_tokens) == (12, 28, 0)
    assert (fates.useful, fates.late) == (0, 7)


def test_what_nobody_asks_for_is_wasted_once_it_is_overwritten():
    """The first session is expected too early: 12,500 ns. The other's turn at 20,000 lacks what gave way to it."""
    brought = three_turns(Session(expected_gap_s=12e-6, lead_s=0.0, share=1.0), last=1)
    assert brought.tier_account(0).prefetch.evicting == 7
    assert brought.tier_account(0).prefetch.wasted == 8


def test_no_more_than_its_share_of_free_blocks_is_taken():
    """A quarter of the 13 that are free, three being its own."""
    brought = three_turns(Session(expected_gap_s=19.5e-6, lead_s=5e-6, share=0.25))
    assert (brought.account.hbm_tokens, brought.account.host_tokens) == (12 + 12, 16)


def test_the_gap_is_learnt():
    trace = turns_trace([[(0, 8, 3), (40, 4, 3), (40, 4, 3)]])
    run = TierMachine(
        trace, sequence_hashes(trace, BLOCK), tier_setup(100), blocks=30, prefetch=Session(lead_s=0.0)
    ).run()
    ends = [301, 2302]  # three steps after the first two arrivals
    gaps = [trace.arrival_ns[1] - ends[0], trace.arrival_ns[2] - ends[1]]
    assert run.core.allocator._prefetch._expectations.gap_ns == sum(gaps) // 2


def outcome(load, setup, **options):
    run = machine(load, setup, **options).run()
    return run.finished, run.finish_ns, run.cached, run.core.preemptions, run.core.prefix_hits


@settings(max_examples=100, deadline=None)
@given(
    load=loads,
    seats=st.integers(1, 5),
    batcher=st.sampled_from([Chunked(), Continuous()]),
    slowness=st.sampled_from([0, 1, 30]),
)
def test_copies_beside_an_engine_with_room_change_nothing(load, seats, batcher, slowness):
    """Write-through with reload never, where links slow no step: the engine does what it does without tiers."""
    options = {"blocks": 500, "seats": seats, "batcher": batcher}
    options["transfer_ns"] = lambda transfer: slowness * transfer.num_bytes
    setup = tier_setup(50, 50, reload="never")
    assert outcome(load, setup, **options) == outcome(load, None, **options)


@settings(max_examples=100, deadline=None)
@given(load=loads, blocks=st.integers(14, 25), chunk=st.sampled_from([None, 9]))
def test_copies_that_take_no_time_change_nothing(load, blocks, chunk):
    """The same where blocks are short: one sequence at a time, since of several that end at once some wait."""
    options = {"blocks": blocks, "seats": 1, "batcher": Chunked(chunk_tokens=chunk)}
    options["transfer_ns"] = lambda transfer: 0
    setup = tier_setup(300, reload="never")
    assert outcome(load, setup, **options) == outcome(load, None, **options)


def network(replicas, latency_ns, bandwidth):
    """HBM and PCIe of so many bytes a nanosecond, and a tenth, a disk of a hundredth."""
    device = SimpleNamespace(
        hbm_bytes_per_s=bandwidth * 10**9,
        pcie_bytes_per_s=bandwidth * 10**8,
        nvlink_bytes_per_s=None,
        nic_bytes_per_s=None,
    )
    return Network(Clock(), device, replicas, measured={"disk": bandwidth * 10**7}, latency_ns=latency_ns)


@settings(max_examples=300, deadline=None)
@given(
    load=busy_sessions,
    setup=tiers,
    batcher=st.sampled_from([Chunked(), Chunked(chunk_tokens=9), EveryOther(1500), PrefixFirst()]),
    blocks=st.integers(18, 32),
    seats=st.integers(1, 5),
    replicas=st.integers(1, 2),
    per_context=st.sampled_from([0, 3]),
    latency=st.sampled_from([0, 130]),
    bandwidth=st.sampled_from([5, 200]),
    eviction=st.sampled_from([None, Lfu()]),
    prefetch=st.sampled_from(
        [None, Session(lead_s=2e-7), Session(expected_gap_s=9e-7, lead_s=6e-7, share=1.0)]
    ),
)
def test_fast_forward_is_exact_with_tiers(
    load, setup, batcher, blocks, seats, replicas, per_context, latency, bandwidth, eviction, prefetch
):
    """Records, step logs and what every tier held and moved, bit for bit; preemptions included."""
    trace = turns_trace(load)
    cost = AffineCost(base_ns=70, per_seq_ns=3, per_context_ns=per_context, per_prefill_token_ns=5)
    assert_engine_exact(
        trace,
        cost,
        usable_blocks=blocks,
        network=lambda: network(replicas, latency, bandwidth),
        batcher=batcher,
        block_size=BLOCK,
        max_num_seqs=seats,
        replicas=replicas,
        prefix_caching=True,
        eviction=eviction,
        tiers=setup,
        prefetch=prefetch,
    )


def test_an_engine_waits_for_copies_that_hold_all_of_its_blocks():
    """Ten of twelve blocks of a request that has ended are being copied for 10,000 ns; the next needs four."""
    trace = trace_of((0, 40, 1), (150, 13, 1))
    machine = TierMachine(
        trace, None, tier_setup(100), blocks=12, transfer_ns=lambda transfer: 10 * transfer.num_bytes
    )
    idle = []
    machine.run(lambda: idle.append((machine.now, machine.core.num_waiting, machine.core.num_running)))
    assert machine.finish_ns == {0: 100, 1: 10_100 + 100}
    assert (10_100, 1, 0) in idle


def test_a_sequence_that_gives_way_to_copies_runs_again_when_they_have_landed():
    """Alone, it lacks a block that a request which has ended still holds: it is displaced, and no step runs."""
    load = [(0, ([], 3), 15), (0, ([0, 0, 0, 0, 0, 0], 10), 5)]
    slow = machine(load, tier_setup(4), blocks=14, seats=1, transfer_ns=lambda transfer: transfer.num_bytes)
    slow.run()
    assert slow.finished == [0, 1]
    assert slow.core.preemptions == 1
