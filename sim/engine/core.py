"""The engine: queues, admission, preemption and block accounting around the policies. No clock, no device.

`schedule(now)` plans a step, `commit(plan, steps, now)` says that it ran. Three drivers use it: the simulated
replica, the replay of a real engine's step log, and the miniature engine. The order of things is that of vLLM's V1
scheduler (0.32): running sequences first, in the order of their admission; a decode takes one token, an unfinished
prompt takes what the budget leaves; then the queue, first come first served, while budget and seats last. The head
of the queue needs free blocks for all its tokens so far, and nobody overtakes it. Where a running sequence lacks a
block, the latest admitted gives way: its blocks are freed, its tokens are computed again later, it goes to the front
of the queue, and nobody is admitted in that step.

KV that another tier holds is brought before its sequence runs: the sequence holds its blocks and waits beside the
queue, as with vLLM's KV connectors. That a transfer has landed is looked at once a step, when the next is planned.

An engine that looks ahead (vLLM's async scheduling) plans each step when the one before it starts, so that the device
never waits for the plan: a request that comes while a step runs is in the plan of the next but one. Here plans are made
when a step starts, of what was there when the step before it did; an engine with nothing to run looks at once. That who
finishes frees a seat and blocks one step later as well is left out: a step in the life of a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Sized

from sim.batching.decision import Batcher, EngineLimits, StepLimits
from sim.engine.decode_group import DecodeGroup
from sim.engine.padded_batch import PaddedBatch
from sim.engine.plan import BatchPlan
from sim.engine.request import RequestTable, Sequence
from sim.engine.state import EngineState
from sim.engine.waiting import Lane, WaitingQueue
from sim.errors import InvariantError
from sim.kv.allocators.decision import Allocator, Claim
from sim.kv.transfer import Transfer


class EngineCore(EngineState):
    """One engine. It is its own `EngineView`: the properties that policies read are public attributes."""

    def __init__(
        self,
        limits: EngineLimits,
        batcher: Batcher,
        allocator: Allocator,
        table: RequestTable,
        *,
        max_model_len: int,
        sliding_window: int | None = None,
        lane_of: Sized[int] | None = None,
        lane_weights: Sized[float] = (1.0,),
        looks_ahead: bool = False,
    ) -> None:
        self.limits = limits
        self.batcher = batcher
        self.allocator = allocator
        self.table = table
        self.max_model_len = max_model_len
        self.sliding_window = sliding_window
        self.prefix_queries = 0  # tokens looked up in the prefix cache, and found, at first admissions
        self.prefix_hits = 0
        self.preempted_queries = 0  # the same of sequences that come again
        self.preempted_hits = 0
        self.loaded_hits = 0  # those of both that came from another tier
        self.running: dict[Sequence, None] = {}  # in the order of admission
        self.prefilling: list[Sequence] = []  # those of them that do not decode yet
        self.loading: dict[Sequence, None] = {}  # admitted, and waiting for KV from another tier
        self.queue = WaitingQueue(table, allocator, batcher.order, lane_of, lane_weights)
        self.group = DecodeGroup(sliding_window)
        self.step = 0  # steps taken
        self.wake_ns: int | None = (
            None  # after schedule() found nothing to do: when the batcher wants to look again
        )
        self.preemptions = 0
        self.padded_tokens = 0  # computed for nobody, in batches that are padded
        self.resumed_tokens = array(
            "q"
        )  # (when, gap to the token before) [ns], where a preemption lies between
        self._padded: PaddedBatch | None = None
        self._landed: list[Transfer] = []
        self._tickets = 0
        self._committed_ns = 0
        self._looks_ahead = looks_ahead
        self._planned_ns = 0  # when an engine that looks ahead plans the step that comes next

    # What drivers call.

    def submit(self, index: int, now_ns: int = 0) -> str | None:
        """Queue a request; a reason where it could never run, in which case it is not queued."""
        prompt = self.table.input_tokens[index]
        tokens = prompt + self.table.output_tokens[index] - 1  # the last token needs no KV
        if tokens + 1 > self.max_model_len:
            return "exceeds_max_model_len"
        if not self.allocator.ever_holds_in(self.queue.lane_of(index).index, prompt, tokens):
            return "exceeds_kv_cache"
        longest = self.batcher.max_prompt_tokens
        if longest is not None and tokens > longest:
            return "exceeds_max_num_batched_tokens"
        if self._looks_ahead:
            self.queue.come(index, now_ns)
        else:
            self.queue.arrive(index)
        return None

    def schedule(self, now_ns: int) -> BatchPlan | None:
        """Plan what to run from now on; None where there is nothing to run (then see `wake_ns`)."""
        queue = self.queue
        if not queue.coming:
            return self._schedule(now_ns)
        queue.see(self._planned_ns)
        plan = self._schedule(now_ns)
        if plan is None and queue.coming:
            queue.see(now_ns)
            return self._schedule(now_ns)
        if plan is not None and plan.arrival_acts and queue.coming:
            plan.steps = 1  # the next plan knows of them
        return plan

    def _schedule(self, now_ns: int) -> BatchPlan | None:
        allocator = self.allocator
        allocator.now_ns = now_ns
        if self.loading or self._landed:
            self._land(now_ns)
        allocator.begin_step()
        limits = None
        if self.prefilling or (len(self.queue) and self._may_admit):
            limits = self.batcher.plan(self, now_ns)
        elif not self.group.size:
            self.wake_ns = allocator.wake_ns
            return None
        elif allocator.has_room(()):
            allocator.grow(1)
            return self._plan_window(None, (), blocked=True)
        chunks, preempted, left = self._continue_running(limits, now_ns)
        allocator.grow(1)
        blocked = not limits
        if limits and (not preempted or len(self.queue.lanes) > 1):
            blocked = self._admit(limits, left, chunks, preempted, now_ns)
        if chunks:
            return self._plan_prompts(chunks, preempted)
        if self.group.size:
            return self._plan_window(limits, preempted, blocked=blocked)
        if preempted:  # who gave way was alone, and out of tokens of its pool: see what its lane waits for
            return self._schedule(now_ns)
        self._sleep(limits)
        return None

    def commit(self, plan: BatchPlan, steps: int, now_ns: int, last_start_ns: int = 0) -> list[Sequence]:
        """`steps` of the plan's steps ran, the last of them to `now_ns`; returns the sequences that finished.

        An engine that looks ahead plans its next step when the last of them starts.
        """
        allocator = self.allocator
        self.step += steps
        self._planned_ns = last_start_ns
        if steps > 1:
            allocator.grow(steps - 1)
        plan.last_used_blocks = allocator.used_blocks
        if plan.pool_blocks:
            plan.last_pool_blocks = allocator.pool_blocks()
        self._committed_ns = allocator.now_ns = now_ns
        if self._padded is not None:
            self._padded.begin(self.step)
            self.padded_tokens += plan.padded_tokens * steps
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
            allocator.release(seq.kv)
        return finished

    def take_transfers(self) -> list[Transfer]:
        """Transfers to start now; asked after every `schedule` and `commit`."""
        asked = self.allocator.transfers
        if asked:
            self.allocator.transfers = []
        return asked

    def landed(self, transfer: Transfer) -> None:
        """Note that a transfer has ended; acted upon when the next step is planned."""
        self._landed.append(transfer)

    def check_integrity(self) -> None:
        """Raise InvariantError unless queues, blocks and running sums agree; for tests."""
        self.allocator.check_integrity([seq.kv for seq in (*self.running, *self.loading)])
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

    @property
    def _may_admit(self) -> bool:
        """Whether a seat is free, or one may come free since somebody holds what others are promised."""
        if len(self.running) + len(self.loading) < self.limits.max_num_seqs:
            return True
        return self.allocator.recalls

    def _land(self, now_ns: int) -> None:
        """Act on transfers that have ended: sequences whose KV has come join those that run."""
        allocator = self.allocator
        for transfer in self._landed:
            allocator.landed(transfer)
        self._landed.clear()
        for seq in [seq for seq in self.loading if not allocator.is_loading(seq.kv)]:
            del self.loading[seq]
            if seq.paused_ns < 0:  # else it is part of the pause
                seq.loading_ns = now_ns - seq.opened_ns
            self._run(seq, now_ns)

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
        budget = left
        for seq in self.prefilling:
            if budget <= 0:
                break
            new_tokens = min(seq.target - seq.computed, budget)
            budget -= new_tokens
            chunks.append((seq, new_tokens))
        if not allocator.has_room([(seq.kv, seq.computed + new_tokens) for seq, new_tokens in chunks]):
            recalled = self._recall(now_ns)
            chunks, preempted, budget = self._make_room(left, now_ns)
            preempted += recalled
        for seq, new_tokens in chunks:
            allocator.extend(seq.kv, seq.computed + new_tokens)
        return chunks, preempted, budget

    def _recall(self, now_ns: int) -> list[Sequence]:
        """Let those give way, the latest first, that hold what pools of other lanes are promised and want now."""
        allocator = self.allocator
        allocator.start_recall([(seq.kv, seq.target) for seq in self.prefilling])
        recalled: list[Sequence] = []
        if allocator.recalls:
            for seq in reversed(list(self.running)):
                if allocator.owes(seq.kv):
                    self._preempt(seq, now_ns)
                    recalled.append(seq)
                    allocator.start_recall([(seq.kv, seq.target) for seq in self.prefilling])
        return recalled

    def _make_room(self, budget: int, now_ns: int) -> tuple[list[tuple[Sequence, int]], list[Sequence], int]:
        """Go through the running queue as the engine does, one sequence at a time, the last giving way."""
        allocator = self.allocator
        chunks: list[tuple[Sequence, int]] = []
        preempted: list[Sequence] = []
        allocator.start_room()
        order = list(self.running)
        at = 0
        while at < len(order):
            seq = order[at]
            new_tokens = 0
            wanted: int | None = None
            if seq.joined_step < 0:
                new_tokens = min(seq.target - seq.computed, budget)
                wanted = seq.computed + max(new_tokens, 0)
            while not allocator.promise(seq.kv, wanted):
                victim = self._victim(order, at)
                order.remove(victim)
                self._preempt(victim, now_ns)
                preempted.append(victim)
                if victim is seq:
                    break
            else:
                if new_tokens > 0:
                    budget -= new_tokens
                    chunks.append((seq, new_tokens))
                at += 1
        return chunks, preempted, budget

    def _victim(self, order: list[Sequence], at: int) -> Sequence:
        """Who gives way to the sequence at `at`: the last that can, itself if nobody behind it."""
        kv = order[at].kv
        for victim in reversed(order[at + 1 :]):
            if self.allocator.yields_to(victim.kv, kv):
                return victim
        return order[at]

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
        self.allocator.preempt(seq.kv)
        del self.running[seq]
        seq.computed = 0
        seq.preemptions += 1
        seq.paused_ns = now_ns
        self.preemptions += 1
        self.queue.resume_first(seq)

    def _admit(
        self,
        limits: StepLimits,
        left: int,
        chunks: list[tuple[Sequence, int]],
        preempted: Sized[Sequence],
        now_ns: int,
    ) -> bool:
        """Take from the queue what fits, into `chunks`; True where an arrival could not be admitted either.

        Nobody is admitted in a lane in which somebody gave way in this step.
        """
        allocator, queue = self.allocator, self.queue
        seats = self.limits.max_num_seqs - len(self.running) - len(self.loading)
        admissions = limits.admissions
        if not self.running and not self.loading:
            self._padded = PaddedBatch(self.sliding_window) if limits.padded else None
            queue.choose_anew()
        whole = self._padded is not None or not limits.split_prompts
        full = queue.close(preempted)  # and lanes whose head waits for blocks: nobody overtakes it there
        while left > 0 and admissions > 0:
            lane = queue.head(full)
            if lane is None:
                return len(full) == len(queue.lanes)
            if seats <= 0 and not allocator.recalls:
                return True
            claim = queue.claim(lane, now_ns)
            cached = allocator.find_prefix(claim) if allocator.finds_prefixes else 0
            loading = claim.loading_tokens
            if whole and not self._step_holds(limits, left, claim.tokens, cached + loading):
                return False
            if not (allocator.can_hold(claim) and self._batch_holds(limits, claim.tokens)):
                queue.pass_over(lane)
                full.append(lane)
                continue
            seq = self._open(lane, claim, cached, now_ns)
            seats -= 1
            admissions -= 1
            if loading:
                allocator.extend(seq.kv, seq.computed)
                self.loading[seq] = None
                continue
            self._run(seq, now_ns)
            new_tokens = min(seq.target - cached, left)
            allocator.extend(seq.kv, cached + new_tokens)
            chunks.append((seq, new_tokens))
            left -= new_tokens
        return False

    def _step_holds(self, limits: StepLimits, left: int, tokens: int, found: int) -> bool:
        """Whether the step has room for all of a prompt of so many tokens, some of them found."""
        if self._padded is not None:
            return self._padded.holds(tokens, found, limits.prefill_tokens)
        return tokens - found <= left

    def _batch_holds(self, limits: StepLimits, tokens: int) -> bool:
        """Whether the batch may take so many tokens more: contexts of decodes and all of the other prompts count."""
        if limits.batch_tokens is None or not (self.running or self.loading):
            return True
        prompts = sum(seq.target for seq in self.prefilling) + sum(seq.target for seq in self.loading)
        return self.group.context_tokens(self.step) + prompts + tokens <= limits.batch_tokens

    def _open(self, lane: Lane, claim: Claim, cached: int, now_ns: int) -> Sequence:
        """Let the head of the lane hold what it claims, `cached` tokens of which are there."""
        kv = self.allocator.open(claim)
        head = self.queue.take(lane)
        if isinstance(head, Sequence):
            seq = head
            seq.kv = kv
        else:
            seq = Sequence(head, self.table, kv)
        seq.opened_ns = now_ns
        seq.computed = cached + claim.loading_tokens
        if self.allocator.finds_prefixes:
            self._count_prefix(seq, claim.loading_tokens)
        if self._padded is not None:
            self._padded.join(claim.tokens, seq.computed)
        if self.queue.shared:
            self.queue.served(lane, seq.target - seq.computed)
        return seq

    def _count_prefix(self, seq: Sequence, loading: int) -> None:
        """Count what a request found when it first came, and apart what it found of its own after a preemption."""
        self.loaded_hits += loading
        if seq.preemptions:
            self.preempted_queries += seq.target
            self.preempted_hits += seq.computed
            return
        seq.cached_tokens = seq.computed
        self.prefix_queries += seq.target
        self.prefix_hits += seq.computed

    def _run(self, seq: Sequence, now_ns: int) -> None:
        """Let a sequence join those that run, at the end of their queue."""
        if seq.paused_ns >= 0:
            paused = now_ns - seq.paused_ns
            seq.paused_ns = -1
            if seq.first_token_ns < 0:
                seq.paused_prefill_ns += paused
            else:
                seq.paused_decode_ns += paused
        if seq.scheduled_ns < 0:
            seq.scheduled_ns = now_ns
        self._tickets += 1
        seq.ticket = self._tickets
        self.running[seq] = None
        self.prefilling.append(seq)

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
            self.allocator.memory(),
            self.prefix_queries,
            self.prefix_hits,
            len(self.running),
            pool_blocks=self.allocator.pool_blocks(),
        )

    def _plan_prompts(self, chunks: list[tuple[Sequence, int]], preempted: Sized[Sequence]) -> BatchPlan:
        plan = self._plan()
        plan.chunks = chunks
        plan.shapes = [(new_tokens, seq.computed) for seq, new_tokens in chunks]
        if self._padded is not None:
            self._padded.pad(plan, len(self.prefilling) + len(self.loading), self.step)
        plan.preempted = preempted
        return plan

    def _plan_window(
        self, limits: StepLimits | None, preempted: Sized[Sequence], *, blocked: bool
    ) -> BatchPlan:
        plan = self._plan()
        if self._padded is not None:
            self._padded.pad(plan, len(self.prefilling) + len(self.loading), self.step)
        plan.preempted = preempted
        if preempted or (limits and self.batcher.looks_every_step):
            return plan
        if limits is None and self.allocator.recalls and len(self.queue):
            return plan  # this step's growth made a debt of a seat or a block that somebody waits for
        alike = self.group.steps_alike(self.step)
        if self._padded is not None:
            alike = self._padded.steps_alike(alike, self.step)
        if alike > 1:
            plan.steps = 1 + self.allocator.growth_limit(alike - 1)
        plan.until_ns = self.allocator.wake_ns
        if limits:
            plan.until_ns = _earlier(plan.until_ns, limits.next_change_ns)
            plan.arrival_acts = not blocked
        else:
            plan.arrival_acts = self._may_admit
        return plan

    def _sleep(self, limits: StepLimits | None) -> None:
        self.wake_ns = limits.next_change_ns if limits else None
        stuck = self.wake_ns is None and not self.loading and not self.allocator.expects_transfers
        self.wake_ns = _earlier(self.wake_ns, self.allocator.wake_ns)
        if stuck and (self.running or self.num_waiting):
            raise InvariantError(
                f"{len(self.running)} sequences and {self.num_waiting} in the queue, and nothing runs"
            )


def _earlier(first_ns: int | None, second_ns: int | None) -> int | None:
    """The earlier of two times; None is never."""
    if first_ns is None or second_ns is None:
        return second_ns if first_ns is None else first_ns
    return min(first_ns, second_ns)
