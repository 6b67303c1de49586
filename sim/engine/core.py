"""The engine: queues, admission, preemption and block accounting around the policies. No clock, no device.

`schedule(now)` plans a step, `commit(plan, steps, now)` says that it ran. Three drivers use it: the simulated
replica, the replay of a real engine's step log, and the miniature engine. The order of things is that of vLLM's V1
scheduler (0.32): running sequences first, in the order of their admission; a decode takes one token, an unfinished
prompt takes what the budget leaves; then the queue, first come first served, while budget and seats last. The head
of the queue needs free blocks for all its tokens so far, and nobody overtakes it. Where a running sequence lacks a
block, the latest admitted gives way: its blocks are freed, its tokens are computed again later, it goes to the front
of the queue, and nobody is admitted in that step.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence as Sized

from sim.batching.decision import Batcher, EngineLimits, StepLimits
from sim.engine.decode_group import DecodeGroup
from sim.engine.plan import BatchPlan
from sim.engine.request import RequestTable, Sequence
from sim.errors import InvariantError
from sim.kv.allocators.paged import Contents, PagedAllocator


class EngineCore:
    """One engine. It is its own `EngineView`: the properties that policies read are public attributes."""

    def __init__(
        self,
        limits: EngineLimits,
        batcher: Batcher,
        allocator: PagedAllocator,
        table: RequestTable,
        *,
        max_model_len: int,
        sliding_window: int | None = None,
    ) -> None:
        self.limits = limits
        self.batcher = batcher
        self.allocator = allocator
        self.table = table
        self.max_model_len = max_model_len
        self._head: tuple[int, Contents] | None = None  # contents of the request last looked at in the queue
        self.prefix_queries = 0  # tokens looked up in the prefix cache, and found, at admissions
        self.prefix_hits = 0
        self.running: dict[Sequence, None] = {}  # in the order of admission
        self.prefilling: list[Sequence] = []  # those of them that do not decode yet
        self.resumed: deque[Sequence] = deque()  # preempted, ahead of all that arrived
        self.arrived: deque[int] = deque()
        self.group = DecodeGroup(sliding_window)
        self.step = 0  # steps taken
        self.wake_ns: int | None = (
            None  # after schedule() found nothing to do: when the batcher wants to look again
        )
        self.preemptions = 0
        self.resumed_tokens = array(
            "q"
        )  # (when, gap to the token before) [ns], where a preemption lies between
        self._tickets = 0
        self._committed_ns = 0

    # What policies see.

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_decodes(self) -> int:
        return self.group.size

    @property
    def num_waiting(self) -> int:
        return len(self.resumed) + len(self.arrived)

    @property
    def oldest_wait_ns(self) -> int:
        head = self.resumed[0].index if self.resumed else self.arrived[0]
        return self.table.arrival_ns[head]

    @property
    def top_priority(self) -> int:
        priorities = [seq.priority for seq in self.prefilling]
        if self.resumed:
            priorities.append(self.resumed[0].priority)
        elif self.arrived:
            priorities.append(self.table.priority[self.arrived[0]])
        return min(priorities, default=0)

    @property
    def next_prompt(self) -> tuple[int, int]:
        for queue in (self.prefilling, self.resumed):
            if queue:
                return queue[0].target - queue[0].computed, queue[0].computed
        return (self.table.input_tokens[self.arrived[0]], 0) if self.arrived else (0, 0)

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

    # What drivers call.

    def submit(self, index: int) -> str | None:
        """Queue a request; a reason where it could never run, in which case it is not queued."""
        prompt = self.table.input_tokens[index]
        tokens = prompt + self.table.output_tokens[index] - 1  # the last token needs no KV
        if tokens + 1 > self.max_model_len:
            return "exceeds_max_model_len"
        if self.allocator.blocks_for(tokens) > self.allocator.num_blocks:
            return "exceeds_kv_cache"
        longest = self.batcher.max_prompt_tokens
        if longest is not None and tokens > longest:
            return "exceeds_max_num_batched_tokens"
        self.arrived.append(index)
        return None

    def schedule(self, now_ns: int) -> BatchPlan | None:
        """Plan what to run from now on; None where there is nothing to run (then see `wake_ns`)."""
        self.allocator.now_ns = now_ns
        limits = None
        if self.prefilling or (
            (self.arrived or self.resumed) and len(self.running) < self.limits.max_num_seqs
        ):
            limits = self.batcher.plan(self, now_ns)
        elif not self.group.size:
            self.wake_ns = None
            return None
        elif self.allocator.growth_demand() <= self.allocator.free_blocks:
            self.allocator.grow(1)
            return self._plan_window(None, (), blocked=True)
        chunks, preempted, left = self._continue_running(limits, now_ns)
        self.allocator.grow(1)
        blocked = not limits
        if limits and not preempted:
            blocked = self._admit(limits, left, chunks, now_ns)
        if chunks:
            return self._plan_prompts(chunks, preempted)
        if self.group.size:
            return self._plan_window(limits, preempted, blocked=blocked)
        self._sleep(limits)
        return None

    def commit(self, plan: BatchPlan, steps: int, now_ns: int) -> list[Sequence]:
        """`steps` of the plan's steps ran, the last of them to `now_ns`; returns the sequences that finished."""
        self.step += steps
        if steps > 1:
            self.allocator.grow(steps - 1)
        plan.last_used_blocks = self.allocator.used_blocks
        self._committed_ns = self.allocator.now_ns = now_ns
        finished = self.group.finished(self.step - 1)
        for seq in finished:
            self.group.leave(seq, self.step)
        for seq, new_tokens in plan.chunks:
            seq.computed += new_tokens
            if seq.computed == seq.target:
                self.prefilling.remove(seq)
                if self._sample(seq, now_ns):
                    finished.append(seq)
        if len(finished) > 1 and plan.chunks:
            finished.sort(key=lambda seq: seq.ticket)  # blocks come back in the order of the running queue
        for seq in finished:
            del self.running[seq]
            self.allocator.release(seq.kv)
        return finished

    def check_integrity(self) -> None:
        """Raise InvariantError unless queues, blocks and running sums agree; for tests."""
        self.allocator.check_integrity(seq.kv for seq in self.running)
        decoding = [seq for seq in self.running if seq.joined_step >= 0]
        if len(decoding) != self.group.size or len(decoding) + len(self.prefilling) != len(self.running):
            raise InvariantError(f"{self.group.size} decodes, {len(self.prefilling)} prompts, {self.running}")
        context = sum(seq.target + self.step - seq.joined_step + 1 for seq in decoding)
        if context != self.context_tokens:
            raise InvariantError(f"context sum {self.context_tokens} instead of {context}")
        tickets = [seq.ticket for seq in self.running]
        if tickets != sorted(tickets) or len(tickets) > self.limits.max_num_seqs:
            raise InvariantError(f"running queue out of order or too long: {tickets}")

    # One step, from the top.

    def _continue_running(
        self, limits: StepLimits | None, now_ns: int
    ) -> tuple[list[tuple[Sequence, int]], list[Sequence], int]:
        """Chunks of the prompts in progress, whom they displaced, and the prompt tokens left for the queue."""
        allocator = self.allocator
        left = 0
        if limits is not None:
            left = min(limits.prefill_tokens, self.limits.max_num_batched_tokens - self.group.size)
        chunks: list[tuple[Sequence, int]] = []
        preempted: list[Sequence] = []
        need = allocator.growth_demand()
        budget = left
        for seq in self.prefilling:
            if budget <= 0:
                break
            new_tokens = min(seq.target - seq.computed, budget)
            budget -= new_tokens
            need += allocator.missing(seq.kv, seq.computed + new_tokens)
            chunks.append((seq, new_tokens))
        if need > allocator.free_blocks:
            chunks, preempted, budget = self._make_room(left, now_ns)
        for seq, new_tokens in chunks:
            allocator.extend(seq.kv, seq.computed + new_tokens)
        return chunks, preempted, budget

    def _make_room(self, budget: int, now_ns: int) -> tuple[list[tuple[Sequence, int]], list[Sequence], int]:
        """Go through the running queue as the engine does, one sequence at a time, the last giving way."""
        allocator = self.allocator
        chunks: list[tuple[Sequence, int]] = []
        preempted: list[Sequence] = []
        granted = 0
        order = list(self.running)
        at = 0
        while at < len(order):
            seq = order[at]
            new_tokens = 0
            if seq.joined_step >= 0:
                need = int(allocator.needs_block(seq.kv))
            else:
                new_tokens = min(seq.target - seq.computed, budget)
                need = allocator.missing(seq.kv, seq.computed + new_tokens) if new_tokens > 0 else 0
            while granted + need > allocator.free_blocks:  # blocks that a victim shared stay taken
                victim = order.pop()
                self._preempt(victim, now_ns)
                preempted.append(victim)
                if victim is seq:
                    break
            else:
                granted += need
                if new_tokens > 0:
                    budget -= new_tokens
                    chunks.append((seq, new_tokens))
            at += 1
        return chunks, preempted, budget

    def _preempt(self, seq: Sequence, now_ns: int) -> None:
        if seq.joined_step >= 0:
            decoded = self.step - seq.joined_step
            target = seq.target + 1 + decoded
            self.group.leave(seq, self.step)
            seq.generated += decoded
            seq.target = target
            seq.token_ns = self._committed_ns
        else:
            self.prefilling.remove(seq)
        self.allocator.release(seq.kv)
        del self.running[seq]
        seq.computed = 0
        seq.preemptions += 1
        seq.paused_ns = now_ns
        self.preemptions += 1
        self.resumed.appendleft(seq)

    def _admit(self, limits: StepLimits, left: int, chunks: list[tuple[Sequence, int]], now_ns: int) -> bool:
        """Take from the queue what fits, into `chunks`; True where its head waits for blocks or a seat."""
        allocator = self.allocator
        seats = self.limits.max_num_seqs - len(self.running)
        admissions = limits.admissions
        while left > 0 and admissions > 0 and (self.resumed or self.arrived):
            if seats == 0:
                return True
            tokens = self.resumed[0].target if self.resumed else self.table.input_tokens[self.arrived[0]]
            contents = self._contents_of_head()
            prefix = allocator.find_prefix(contents, tokens)
            cached = len(prefix) * allocator.block_size
            if tokens - cached > left and not limits.split_prompts:
                return False
            if not allocator.can_hold(tokens, prefix):
                return True
            seq = self._next_of_queue(now_ns, contents)
            if allocator.finds_prefixes:
                self._share(seq, prefix, cached)
            new_tokens = min(tokens - cached, left)
            allocator.extend(seq.kv, cached + new_tokens)
            chunks.append((seq, new_tokens))
            left -= new_tokens
            seats -= 1
            admissions -= 1
        return False

    def _contents_of_head(self) -> Contents | None:
        if not self.allocator.finds_prefixes:
            return None
        index = self.resumed[0].index if self.resumed else self.arrived[0]
        if self._head is None or self._head[0] != index:  # a head that waits is asked for again and again
            self._head = index, self.table.contents(index, self.allocator.block_size)
        return self._head[1]

    def _share(self, seq: Sequence, prefix: Contents, cached: int) -> None:
        self.allocator.share(seq.kv, prefix)
        seq.computed = cached
        if not seq.preemptions:
            seq.cached_tokens = cached
        self.prefix_queries += seq.target
        self.prefix_hits += cached

    def _next_of_queue(self, now_ns: int, contents: Contents | None) -> Sequence:
        if self.resumed:
            seq = self.resumed.popleft()
            paused = now_ns - seq.paused_ns
            seq.paused_ns = -1
            if seq.first_token_ns < 0:
                seq.paused_prefill_ns += paused
            else:
                seq.paused_decode_ns += paused
        else:
            seq = Sequence(self.arrived.popleft(), self.table, self.allocator.open(contents), now_ns)
        self._tickets += 1
        seq.ticket = self._tickets
        self.running[seq] = None
        self.prefilling.append(seq)
        return seq

    def _sample(self, seq: Sequence, now_ns: int) -> bool:
        """The step that completed its prompt yields a token; True where that was the last one."""
        seq.generated += 1
        if seq.first_token_ns < 0:
            seq.first_token_ns = now_ns
        else:
            self.resumed_tokens.extend((now_ns, now_ns - seq.token_ns))
        if seq.generated == seq.output_tokens:
            return True
        self.group.join(seq, self.step)
        self.allocator.start_growing(seq.kv)
        return False

    # Plans.

    def _plan(self) -> BatchPlan:
        group = self.group
        window, growing = group.window_context(self.step)
        return BatchPlan(
            group.size,
            group.context_tokens(self.step),
            window,
            growing,
            self.allocator.used_blocks,
            len(self.running),
        )

    def _plan_prompts(self, chunks: list[tuple[Sequence, int]], preempted: Sized[Sequence]) -> BatchPlan:
        plan = self._plan()
        plan.chunks = chunks
        plan.shapes = [(new_tokens, seq.computed) for seq, new_tokens in chunks]
        plan.preempted = preempted
        return plan

    def _plan_window(
        self, limits: StepLimits | None, preempted: Sized[Sequence], *, blocked: bool
    ) -> BatchPlan:
        plan = self._plan()
        plan.preempted = preempted
        if preempted or (limits and self.batcher.looks_every_step):
            return plan
        alike = self.group.steps_alike(self.step)
        if alike > 1:
            plan.steps = 1 + self.allocator.growth_limit(alike - 1)
        if limits:
            plan.until_ns = limits.next_change_ns
            plan.arrival_acts = not blocked
        else:
            plan.arrival_acts = len(self.running) < self.limits.max_num_seqs
        return plan

    def _sleep(self, limits: StepLimits | None) -> None:
        self.wake_ns = limits.next_change_ns if limits else None
        if (self.running or self.num_waiting) and self.wake_ns is None:
            raise InvariantError(
                f"{len(self.running)} sequences and {self.num_waiting} in the queue, and nothing runs"
            )
