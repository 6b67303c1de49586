"""Tiers for tests, and a machine that carries an engine's transfers out and looks at every byte."""

from __future__ import annotations

from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.engine.core import EngineCore
from sim.engine.request import RequestTable
from sim.kv.build import KvSetup, build_allocator
from sim.kv.eviction.lru import Lru
from sim.kv.tiers.prefetching import SessionPrefetch
from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute
from sim.kv.tiers.reload import Reload
from sim.kv.tiers.setup import TierSetup
from sim.kv.tiers.swapping import Swapping
from tests.sim.doubles import AffineCost

BLOCK = 4
BLOCK_BYTES = 100
COST = AffineCost(base_ns=70, per_seq_ns=3, per_prefill_token_ns=5, per_prefill_context_ns=1)


def tier_setup(
    host_blocks=100,
    disk_blocks=0,
    *,
    write="through",
    reload="cheaper",
    preempt="recompute",
    eviction=None,
    rates=None,
    cost=COST,
    budget=64,
    block_size=BLOCK,
):
    """Host memory at one byte a nanosecond, the disk at a tenth of that."""
    rates = rates or Rates(1e9, 1e9, 1e8 if disk_blocks else None, latency_ns=10)
    recompute = Recompute(cost, budget)
    return TierSetup(
        host_blocks,
        disk_blocks,
        Reload(reload, rates, recompute, block_size, BLOCK_BYTES),
        Swapping(preempt, rates, recompute, block_size, BLOCK_BYTES),
        write,
        eviction or Lru(),
    )


class TierMachine:
    """Runs an engine step by step, one transfer taking as long as it says, and follows what is in every block.

    It fails where a step reads a block that does not hold what it should, where a block is overwritten that is being
    copied, and where a load reads what no copy has brought.
    """

    def __init__(
        self,
        trace,
        hashes,
        tiers,
        *,
        blocks,
        seats=4,
        budget=64,
        batcher=None,
        eviction=None,
        prefetch=None,
        transfer_ns=lambda transfer: transfer.num_bytes,
        step_ns=100,
    ):
        self.table = RequestTable(trace, hashes)
        limits = EngineLimits(seats, budget, BLOCK)
        kv = KvSetup(blocks, BLOCK, 1 << 30, prefix_caching=True, eviction=eviction, tiers=tiers)
        self.core = EngineCore(
            limits,
            (batcher or Chunked()).build(limits, COST),
            build_allocator(kv, self.table),
            self.table,
            max_model_len=1 << 30,
        )
        self.allocator = self.core.allocator
        if prefetch is not None:
            self.allocator.prefetch_with(
                SessionPrefetch(
                    prefetch.expectations(),
                    trace.session.tolist().__getitem__,
                    self.table.arrival_ns.__getitem__,
                )
            )
        self.now = 0
        self.hbm = {}  # content by block
        self.stored = {}  # bytes by (tier, content); never forgotten: whether they are still there is the tiers' word
        self.flying = []  # (when it lands, number, transfer)
        self.started = 0
        self.finished = []
        self.finish_ns = {}
        self.cached = {}
        self._transfer_ns = transfer_ns
        self._step_ns = step_ns

    def run(self, after_step=lambda: None, most_steps=100_000):
        """To the end of all requests; arrivals are those of the table."""
        arrivals = list(range(len(self.table)))
        expected = 0
        for _ in range(most_steps):
            while arrivals and self.table.arrival_ns[arrivals[0]] <= self.now:
                expected += self.core.submit(arrivals.pop(0)) is None
            self._land()
            plan = self.core.schedule(self.now)
            self._take()
            self.core.check_integrity()
            if plan is None:
                times = [at for at, _, _ in self.flying]
                times += [self.table.arrival_ns[arrivals[0]]] if arrivals else []
                times += [self.core.wake_ns] if self.core.wake_ns is not None else []
                if not times:
                    break
                self.now = max(min(times), self.now)
                after_step()
                continue
            while any(transfer.blocking for _, _, transfer in self.flying):
                self.now = max(self.now, min(at for at, _, t in self.flying if t.blocking))
                self._land()
            self._step(plan)
            self._take()
            self.core.check_integrity()
            after_step()
        else:
            raise AssertionError("no progress")
        assert len(self.finished) == expected
        return self

    def _step(self, plan):
        copied = {slot for _, _, t in self.flying if t.route == "offload" for slot in t.payload.slots}
        loaded = {
            slot
            for _, _, t in self.flying
            if "load" in t.route[-4:] and t.route != "offload"
            for slot in t.payload.slots
        }
        chunks = dict(plan.chunks)
        for seq in self.core.running:
            table = self.allocator.block_table(seq.kv)
            contents = self.table.contents(seq.index, BLOCK).tolist()
            decodes = seq.joined_step >= 0
            there = seq.target + self.core.step - seq.joined_step if decodes else seq.computed
            after = there + (1 if decodes else chunks.get(seq, 0))
            for at in range(there // BLOCK):
                assert self.hbm.get(table[at]) == contents[at], f"request {seq.index}, block {at}"
                assert table[at] not in loaded
            for at in range(there // BLOCK, -(-after // BLOCK)):
                assert table[at] not in copied | loaded, "overwritten while it moves"
                whole = (at + 1) * BLOCK <= after and at < len(contents)
                self.hbm[table[at]] = contents[at] if whole else None
        self.now += self._step_ns
        done = self.core.commit(plan, 1, self.now)
        for seq in done:
            self.finished.append(seq.index)
            self.finish_ns[seq.index] = self.now
            self.cached[seq.index] = seq.cached_tokens

    def _take(self):
        for transfer in self.core.take_transfers():
            work, route = transfer.payload, transfer.route
            if route == "offload":
                assert [self.hbm.get(slot) for slot in work.slots] == work.contents
            elif route == "disk_store":
                assert all(("host", content) in self.stored for content in work.contents)
            else:
                tier = "host" if route == "load" else "disk"
                assert all((tier, content) in self.stored for content in work.contents)
                copied = {s for _, _, t in self.flying if t.route == "offload" for s in t.payload.slots}
                assert not copied & set(work.slots), "loaded over a block that is being copied"
                for slot in work.slots:
                    self.hbm[slot] = None
            blocks = len(work.contents)
            assert transfer.num_bytes == blocks * BLOCK_BYTES
            self.started += 1
            self.flying.append((self.now + max(self._transfer_ns(transfer), 0), self.started, transfer))

    def _land(self):
        for at, number, transfer in sorted(self.flying, key=lambda entry: entry[:2]):
            if at <= self.now:
                self.flying.remove((at, number, transfer))
                work, route = transfer.payload, transfer.route
                if route == "offload":
                    assert [self.hbm.get(slot) for slot in work.slots] == work.contents, "overwritten"
                    self.stored.update({("host", content): True for content in work.contents})
                elif route == "disk_store":
                    self.stored.update({("disk", content): True for content in work.contents})
                else:
                    assert all(content in work.store for content in work.contents), "gone while it was read"
                    for slot, content in zip(work.slots, work.contents, strict=True):
                        self.hbm[slot] = content
                self.core.landed(transfer)
