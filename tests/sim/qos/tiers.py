"""Contracts and engines for tests of pools."""

from __future__ import annotations

from fractions import Fraction

from sim.batching.chunked import Chunked
from sim.batching.decision import EngineLimits
from sim.engine.cluster import EngineSetup
from sim.engine.core import EngineCore
from sim.engine.request import RequestTable
from sim.kv.build import KvSetup
from sim.qos.contract import Contracts, Tier
from tests.sim.doubles import AffineCost
from workloads.trace import BlockHashes, Trace


def contracts(*tiers: Tier, hard: bool = False) -> Contracts:
    """One tenant a tier, in order."""
    return Contracts(hard, tiers, tuple(range(len(tiers))))


def tier(name: str, share: str, burst: str = "1", refill: float | None = None, **more: object) -> Tier:
    return Tier(name, Fraction(share), Fraction(burst), refill, **more)


def tenants_trace(*requests: tuple[int, int, int, int], names: int = 2) -> Trace:
    """Requests as (arrival ns, input tokens, output tokens, tenant)."""
    arrivals, inputs, outputs, tenants = zip(*requests, strict=True) if requests else ((),) * 4
    return Trace.build(
        arrivals, inputs, outputs, tenant=tenants, tenant_names=[f"t{code}" for code in range(names)]
    )


def engine(
    trace: Trace,
    what: Contracts,
    *,
    seats: int = 8,
    budget: int = 64,
    block_size: int = 4,
    blocks: int = 40,
    prefix_caching: bool = False,
    hashes: BlockHashes | None = None,
) -> EngineCore:
    """One engine to be stepped by hand."""
    kv = KvSetup(blocks, block_size, 1 << 40, prefix_caching=prefix_caching)
    setup = EngineSetup(EngineLimits(seats, budget, block_size), Chunked(), kv, what)
    return setup.build(RequestTable(trace, hashes), AffineCost())


class Stepper:
    """Runs an engine one step at a time, each of `step_ns`, and checks its integrity after every call."""

    def __init__(self, core: EngineCore, step_ns: int = 1000) -> None:
        self.core = core
        self.step_ns = step_ns
        self.now_ns = 0
        self.preempted: list[int] = []  # requests, one entry for each time
        self.finished: list[int] = []
        self.used_blocks: tuple[int, ...] = ()  # by pool, while the latest step ran
        self._due = 0

    def step(self) -> bool:
        """Take a step, or sleep until something may happen; False where all is done."""
        core, table = self.core, self.core.table
        while self._due < len(table) and table.arrival_ns[self._due] <= self.now_ns:
            if core.submit(self._due) is not None:
                self.finished.append(self._due)
            self._due += 1
        plan = core.schedule(self.now_ns)
        core.check_integrity()
        self.used_blocks = core.allocator.pool_blocks()
        if plan is None:
            times = [table.arrival_ns[self._due]] if self._due < len(table) else []
            times += [] if core.wake_ns is None else [core.wake_ns]
            if not times:
                return False
            self.now_ns = max(self.now_ns + 1, min(times))
            return True
        self.preempted += [seq.index for seq in plan.preempted]
        self.now_ns += self.step_ns
        self.finished += [seq.index for seq in core.commit(plan, 1, self.now_ns)]
        core.check_integrity()
        return True

    def run(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError(f"{len(self.finished)} of {len(self.core.table)} done after {most} steps")
