"""Links of round bandwidths, and an allocator that moves KV over them when it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from sim.engine.clock import Clock
from sim.kv.allocators.paged import PagedAllocator
from sim.kv.transfer import Transfer
from sim.links.background import Background
from sim.links.network import Network

GB = 10**9
HBM, PCIE = GB, GB // 10  # 1 byte and 0.1 bytes a nanosecond
DEVICE = SimpleNamespace(
    hbm_bytes_per_s=HBM, pcie_bytes_per_s=PCIE, nvlink_bytes_per_s=None, nic_bytes_per_s=None
)
BUSY_PCIE = Background("weights", "load", num_bytes=100 * GB, bytes_per_s=PCIE)


def network_of(*background: Background, replicas: int = 1, latency_ns: int = 0, **measured: float) -> Network:
    return Network(Clock(), DEVICE, replicas, measured=measured, latency_ns=latency_ns, background=background)


@dataclass
class Moving:
    """An allocator that asks for transfers at given steps, when sequences finish or are displaced, and in chains.

    at_steps   transfers as (route, bytes, blocking) by the step at whose start they are asked for
    chained    what is asked for when one has landed, one after the other
    leaving    the bytes that a sequence that leaves writes to the host; 0: none
    """

    at_steps: dict[int, tuple[str, int, bool]] = field(default_factory=dict)
    chained: tuple[tuple[str, int, bool], ...] = ()
    leaving: int = 0
    made: list[MovingAllocator] = field(default_factory=list)
    name = "moving"

    def build(self, num_blocks, block_size, max_model_len, block_bytes):
        self.made.append(MovingAllocator(num_blocks, block_size, self))
        return self.made[-1]


class MovingAllocator(PagedAllocator):
    def __init__(self, num_blocks, block_size, moving):
        super().__init__(num_blocks, block_size)
        self.moving = moving
        self.chained = list(moving.chained)
        self.asked: list[Transfer] = []
        self.told: list[tuple[int, Transfer]] = []
        self.count = 0

    def ask(self, owner, route, num_bytes, blocking):
        self.asked.append(Transfer(owner, route, num_bytes, blocking))
        self.transfers.append(self.asked[-1])

    def grow(self, steps):
        super().grow(steps)
        self.count += steps
        if self.count in self.moving.at_steps:  # the first step of a plan: windows end before
            self.ask("prefetch", *self.moving.at_steps[self.count])

    def growth_limit(self, steps):
        due = [step - self.count - 1 for step in self.moving.at_steps if step > self.count]
        return min([super().growth_limit(steps), *due])

    def landed(self, transfer):
        self.told.append((self.now_ns, transfer))
        if self.chained:
            self.ask("demand", *self.chained.pop())

    def release(self, holding):
        super().release(holding)
        if self.moving.leaving:
            self.ask("offload", "offload", self.moving.leaving, False)

    def preempt(self, holding):
        super().release(holding)
        if self.moving.leaving:
            self.ask("swap_out", "offload", self.moving.leaving, True)
