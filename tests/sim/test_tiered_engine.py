"""An engine whose prefix cache has host memory and disk below it: laws, byte by byte, and against engines without."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.batching.chunked import Chunked
from sim.batching.continuous import Continuous
from sim.kv.eviction.fifo import Fifo
from sim.kv.eviction.length_aware import LengthAware
from sim.kv.eviction.lfu import Lfu
from sim.kv.eviction.ttl import Ttl
from tests.sim.engines import trace_of, with_prefixes
from tests.sim.test_prefix_cache import loads, workload
from tests.sim.tiers import BLOCK, TierMachine, tier_setup
from workloads.answers import sequence_hashes

tiers = st.builds(
    tier_setup,
    host_blocks=st.sampled_from([1, 4, 12, 300]),
    disk_blocks=st.sampled_from([0, 0, 5, 40]),
    write=st.sampled_from(["through", "back"]),
    reload=st.sampled_from(["cheaper", "always"]),
    preempt=st.sampled_from(["recompute", "swap", "cheaper"]),
    eviction=st.sampled_from([None, Lfu(), Fifo(), LengthAware(), Ttl(ttl_s=1e-6)]),
)


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
    batcher=st.sampled_from([Chunked(), Chunked(chunk_tokens=9), Continuous()]),
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
    account = core.allocator.final_account(run.now)
    assert account.queried_tokens == core.prefix_queries
    assert account.hbm_tokens + account.arriving_tokens + account.reloaded_tokens == core.prefix_hits
    assert account.arriving_tokens + account.reloaded_tokens == core.loaded_hits
    assert (account.reloaded + account.swapped_in) * BLOCK == account.reloaded_tokens
