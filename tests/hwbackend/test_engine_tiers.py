"""KV below HBM for real: what was copied out and comes back is what the sequence needs."""

from __future__ import annotations

import pytest

from hwbackend.device import open_device
from hwbackend.engine.host_pages import HostPages
from hwbackend.engine.kv_pool import KvBlocks
from hwbackend.engine.movement import Movement
from hwbackend.engine.replay import first_difference
from sim.engine.request import RequestTable
from sim.errors import ConfigError
from sim.kv.eviction.lfu import Lfu
from tests.hwbackend.test_engine_tokens_and_logits import (
    BLOCK,
    COST,
    MODEL,
    assert_right,
    engine_of,
    serve_on_cpu,
)
from tests.sim.engines import trace_of, with_prefixes
from tests.sim.tiers import tier_setup


def shared_prompts(count=20, gap_ns=9000, output=7):
    """Six prompts in turn, of 5 blocks each: HBM has forgotten one when it comes again."""
    trace = trace_of(*((gap_ns * i, 21 + i % 3, output) for i in range(count)))
    return with_prefixes(trace, [[10 * (i % 6) + k for k in range(5)] for i in range(count)], BLOCK)


@pytest.mark.parametrize("write", ["through", "back"])
@pytest.mark.parametrize("eviction", [None, Lfu()])
@pytest.mark.parametrize("host_blocks", [6, 100])
def test_prefixes_come_back_from_host_memory(write, eviction, host_blocks):
    tiers = tier_setup(host_blocks, write=write, reload="always")
    engine = engine_of(blocks=13, prefix_caching=True, eviction=eviction, tiers=tiers)
    served, tokens, logits = serve_on_cpu(shared_prompts(), engine)
    assert served.requests.completed.all()
    assert_right(served, tokens, logits)
    account = served.steps.tiers
    assert account is not None
    assert account.reloaded > 0 or host_blocks == 6
    assert first_difference(served, engine, COST) is None


def test_preempted_sequences_swap():
    tiers = tier_setup(100, reload="always", preempt="swap")
    engine = engine_of(blocks=15, prefix_caching=True, tiers=tiers)
    trace = with_prefixes(trace_of(*((10 * i, 12, 25) for i in range(8))), [[]] * 8, BLOCK)
    served, tokens, logits = serve_on_cpu(trace, engine)
    assert served.core.preemptions > 0
    assert served.steps.tiers.swapped_in > 0
    assert_right(served, tokens, logits)
    assert first_difference(served, engine, COST) is None


def test_blocks_with_scales_are_refused():
    """A tier keeps the values of a block alone."""
    device = open_device("cpu")
    pool = KvBlocks(device, MODEL, 8, BLOCK)
    pool.layers = [
        device.ops.new_pool(8, BLOCK, MODEL.num_kv_heads, MODEL.head_dim, "int8") for _ in pool.layers
    ]
    core = engine_of(prefix_caching=True, tiers=tier_setup(10, reload="always")).build(
        RequestTable(shared_prompts(3)), COST
    )
    with pytest.raises(ConfigError, match="kv tiers: KV blocks of int8 have scales"):
        Movement(device, pool, core.allocator)
    with pytest.raises(ConfigError, match="KV in host memory: KV blocks of int8 have scales"):
        HostPages(device, MODEL, pool, 1)
    device.close()


def test_a_disk_is_refused():
    tiers = tier_setup(10, 10, reload="always")
    with pytest.raises(ConfigError, match="disk"):
        serve_on_cpu(shared_prompts(3), engine_of(prefix_caching=True, tiers=tiers))
