"""A simulated replica: one SimPy process that plans a step, lets it take its time, and says that it ran.

Steps that cannot differ are taken at once. An arrival in between cuts them short at the next step's end, and so does
any change of the flows that share the replica's HBM: nothing depends on how many were taken together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray
from simpy import Event

from sim.cost import StepCost
from sim.engine.clock import At, Clock, Priority, Signal
from sim.engine.core import EngineCore
from sim.engine.paged_steps import PagedSteps
from sim.engine.plan import BatchPlan
from sim.engine.records import StepLog
from sim.engine.request import Sequence
from sim.kv.transfer import Transfer
from sim.links.replica_links import ReplicaLinks
from sim.links.shared_cost import SharedCost

MOST_STEPS = 4096  # bounds the memory of a window; a longer one is taken in pieces


class Replica:
    """Drives an engine through simulated time.

    `on_step(replica, finished)` runs at the end of a step that computed prompts or finished sequences.
    """

    def __init__(
        self,
        env: Clock,
        index: int,
        core: EngineCore,
        cost: StepCost,
        on_step: Callable[[Replica, list[Sequence]], None],
        *,
        fast_forward: bool = True,
        links: ReplicaLinks | None = None,
        paged: PagedSteps | None = None,
    ) -> None:
        self.env = env
        self.index = index
        self.core = core
        self.log = StepLog()
        self._links = links
        self._paged = paged
        self._cost: StepCost | SharedCost = cost
        if links is not None:
            self._cost = links.connect(cost, self._cut, self._landed)
        self._on_step = on_step
        self._fast_forward = fast_forward
        self._woken = Signal(env)
        self._window: _Window | None = None  # the one that runs and was not cut yet
        self.process = env.process(self._run())

    def submit(self, index: int) -> str | None:
        """Queue a request now; a reason where it can never run."""
        reason = self.core.submit(index, self.env.now_ns)
        if reason is None:
            if self._window is None:
                self._woken.give(Priority.STEP_START)
            elif self._window.arrival_acts:
                self._cut()
        return reason

    def _cut(self) -> None:
        if self._window is not None:
            self._window.cut(self.env.now_ns)
            self._window = None

    def _landed(self, transfer: Transfer) -> None:
        """A transfer has ended now: the core acts on it in the next step, or at once where there is none."""
        if transfer.payload is None or transfer.payload is not self._paged:
            self.core.landed(transfer)
        self._cut()
        self._woken.give(Priority.STEP_START)

    def _run(self) -> Generator[Event, None, None]:
        env, core, cost, log, links = self.env, self.core, self._cost, self.log, self._links
        while True:
            start = env.now_ns
            plan = core.schedule(start)
            waited = 0
            if links is not None:
                waited = yield from self._ready(plan, links)
            if plan is None:
                yield self._idle()
                continue
            step_ns: NDArray[np.int64] | int
            steps = 1
            last_start = start
            if plan.chunks:
                step_ns = cost.mixed_ns(
                    plan.decodes, plan.context_tokens, plan.window_context_tokens, plan.shapes
                )
                yield At(env, step_ns, Priority.STEP_END)
            elif plan.steps == 1 or not self._fast_forward:
                step_ns = cost.decode_ns(plan.decodes, plan.context_tokens, plan.window_context_tokens)
                yield At(env, step_ns, Priority.STEP_END)
            else:
                window = self._window = _Window(env, plan, cost)
                yield window.end
                self._window = None
                steps = window.steps
                step_ns = window.step_ns[:steps]
                last_start = env.now_ns - int(step_ns[-1])
            now = env.now_ns
            finished = core.commit(plan, steps, now, last_start)
            if waited:
                step_ns += waited
            log.add(start, now, plan, step_ns, steps)
            if links is not None:
                self._ran(steps, finished, links)
            if finished or plan.chunks:
                self._on_step(self, finished)
            if env.peek() == now:  # whatever else happens now comes before the next step starts
                yield At(env, 0, Priority.STEP_START)

    def _ready(self, plan: BatchPlan | None, links: ReplicaLinks) -> Generator[Event, None, int]:
        """Start what is to move, wait for what the step needs, and say how long that took [ns]."""
        links.send(self.core.take_transfers())
        if plan is None or self._paged is None:
            return (yield from links.ready(plan))
        links.send(self._paged.demand(self.core, plan))
        waited = yield from links.ready(plan)
        self._paged.runs(links)
        return waited

    def _ran(self, steps: int, finished: list[Sequence], links: ReplicaLinks) -> None:
        if self._paged is not None:
            self._paged.ran(links, finished)
        links.ran(steps)
        links.send(self.core.take_transfers())

    def _idle(self) -> Event:
        """Wait for an arrival, a transfer's end, or the time at which the batcher wants to look again."""
        wake_ns = self.core.wake_ns
        if wake_ns is not None:
            alarm = At(self.env, max(wake_ns - self.env.now_ns, 0), Priority.STEP_START)
            alarm.callbacks.append(lambda _: self._woken.give(Priority.STEP_START))
        return self._woken.wait()


class _Window:
    """Successive decode steps that are taken at once, until one of them turns out to be the last."""

    def __init__(self, env: Clock, plan: BatchPlan, cost: StepCost | SharedCost) -> None:
        self.arrival_acts = plan.arrival_acts
        self.step_ns = cost.decode_window_ns(
            plan.decodes,
            plan.context_tokens,
            plan.window_context_tokens,
            plan.growing,
            min(plan.steps, MOST_STEPS),
        )
        self.steps = self.step_ns.size
        self._start_ns = env.now_ns
        self.end = At(env, int(np.add.reduce(self.step_ns)), Priority.STEP_END)
        if plan.until_ns is not None:
            self.cut(plan.until_ns)

    def cut(self, at_ns: int) -> None:
        """Make the first step that ends at or after `at_ns` the last one."""
        ends = self.step_ns[: self.steps].cumsum()
        last = int(ends.searchsorted(at_ns - self._start_ns))
        if last < self.steps - 1:
            self.steps = last + 1
            end_ns = self._start_ns + int(ends[last])
            self.end = self.end.moved_to(end_ns - self.end.env.now_ns, Priority.STEP_END)
