"""What an engine is at a time, and what policies see of it: `EngineView`, but for what the driver calls."""

from __future__ import annotations

from sim.engine.decode_group import DecodeGroup
from sim.engine.request import RequestTable, Sequence
from sim.engine.waiting import WaitingQueue
from sim.kv.allocators.decision import Allocator


class EngineState:
    """Queues and sums of an `EngineCore`, which alone changes them."""

    table: RequestTable
    allocator: Allocator
    queue: WaitingQueue
    group: DecodeGroup  # those that decode
    running: dict[Sequence, None]  # in the order of admission
    prefilling: list[Sequence]  # those of them that do not decode yet
    loading: dict[Sequence, None]  # admitted, and waiting for KV from another tier
    step: int  # steps taken

    @property
    def num_running(self) -> int:
        return len(self.running) + len(self.loading)

    @property
    def num_decodes(self) -> int:
        return self.group.size

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    @property
    def oldest_wait_ns(self) -> int:
        return self.table.arrival_ns[self.queue.oldest()]

    @property
    def top_priority(self) -> int:
        priorities = [seq.priority for seq in self.prefilling]
        if len(self.queue):
            priorities.append(self.table.priority[self.queue.oldest()])
        return min(priorities, default=0)

    @property
    def next_prompt(self) -> tuple[int, int]:
        if self.prefilling:
            seq = self.prefilling[0]
            return seq.target - seq.computed, seq.computed
        lane = self.queue.head()
        if lane is None:
            return 0, 0
        return lane.resumed[0].target if lane.resumed else self.table.input_tokens[lane.arrived[0]], 0

    @property
    def context_tokens(self) -> int:
        return self.group.context_tokens(self.step)

    @property
    def window_context_tokens(self) -> int:
        return self.group.window_context(self.step)[0]

    @property
    def free_blocks(self) -> int:
        return self.allocator.free_blocks

    @property
    def num_blocks(self) -> int:
        return self.allocator.num_blocks
