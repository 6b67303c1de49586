"""The engine in real time: the simulator's client, router, core and policies around steps that really run.

The loop reads the clock once between two steps, so that whatever it does itself, scheduling, sampling, logging, is
part of a step's time. The client is the simulator's, on an event list that follows the clock: what was due while a
step ran has arrived at its own time, not when the loop came to look. As in the simulator, what happens at one instant
goes flow ends, step end, arrivals, step start.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwbackend.engine.executor import Executor
from hwbackend.engine.step_records import Batch, StepRecord, TransferNumbers, looked
from hwbackend.engine.wall_clock import WallClock
from sim.cost import StepCost
from sim.engine.client import Client
from sim.engine.clock import At, Clock, Priority
from sim.engine.cluster import Cluster, EngineSetup
from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.records import StepColumns, StepLog
from sim.engine.request import RequestTable
from sim.errors import InvariantError
from sim.metrics import Requests
from sim.qos.connections import Connections
from sim.routing.decision import RouterConfig
from workloads.trace import BlockHashes, Trace

_LOOK_NS = 200_000  # between two looks at transfers, while nothing else can happen


class EngineReplica:
    """An engine behind a `Cluster`, which calls `submit`; `turn` takes a step if there is one."""

    index = 0

    def __init__(self, core: EngineCore, executor: Executor, clock: WallClock, timeline: Timeline) -> None:
        self.core = core
        self.log = StepLog()
        self.records: list[StepRecord] = []
        self.submitted: list[int] = []
        self.on_step: Callable[[Any, list[Any]], None] = lambda _replica, _finished: None
        self._executor = executor
        self._clock = clock
        self._timeline = timeline
        self._numbers = TransferNumbers()

    def submit(self, index: int) -> str | None:
        """Queue a request now; a reason where it can never run."""
        reason = self.core.submit(index)
        if reason is None:
            self.submitted.append(index)
        return reason

    def turn(self, now_ns: int) -> int | None:
        """Take one step from `now_ns` on; returns its end, or None where there was nothing to run."""
        core, executor = self.core, self._executor
        landed = executor.landed()
        for transfer in landed:
            core.landed(transfer)
        numbers = [self._numbers.landed(transfer) for transfer in landed]
        before = _state(core)
        plan = core.schedule(now_ns)
        asked = self._start_transfers()
        if plan is None:
            if landed or asked or _state(core) != before:
                self.records.append(looked(core, now_ns, numbers))
            return None
        batch = Batch.of(core, plan)
        planned_ns = self._clock.now_ns()
        executor.ready(core, plan)
        waited_ns = self._clock.now_ns() - planned_ns
        executor.run(core, plan)
        end_ns = self._clock.now_ns()
        self._timeline.advance(end_ns)
        self._end_step(plan, batch, now_ns, end_ns)
        self.records.append(batch.ran(now_ns, end_ns, plan.context_tokens, numbers, waited_ns))
        self._timeline.release()
        return end_ns

    def _end_step(self, plan: BatchPlan, batch: Batch, start_ns: int, end_ns: int) -> None:
        finished = self.core.commit(plan, 1, end_ns)
        self.log.add(start_ns, end_ns, plan, end_ns - start_ns, 1)
        self._executor.ended(finished)
        self._start_transfers()
        if finished or batch.chunks:
            self.on_step(self, finished)

    def _start_transfers(self) -> int:
        """Start what the core asks for; returns how many."""
        asked = self.core.take_transfers()
        if asked:
            self._numbers.asked(asked)
            self._executor.start(asked)
        return len(asked)


def _state(core: EngineCore) -> tuple[int, ...]:
    """What a look that finds nothing to compute may have changed all the same."""
    return len(core.running), len(core.loading), core.preemptions, core.allocator.used_blocks


class Timeline:
    """The client's event list, brought up to the clock."""

    def __init__(self) -> None:
        self.env = Clock()

    def advance(self, now_ns: int) -> None:
        """Let everything happen that was due before `now_ns`, and be then."""
        env = self.env
        while env.peek() < now_ns:
            env.step()
        if env.now_ns < now_ns:
            At(env, now_ns - env.now_ns, Priority.FLOW_END)
            env.step()

    def release(self) -> None:
        """Let everything happen that is due now."""
        env = self.env
        while env.peek() <= env.now_ns:
            env.step()

    @property
    def next_ns(self) -> int | None:
        """When something happens next; None: never."""
        when = self.env.peek()
        return None if when == float("inf") else int(when)


@dataclass(frozen=True, eq=False)
class Served:
    """What came of a run: the facts of a simulated one, and what a replay of it needs.

    submitted   requests in the order in which the engine got them
    """

    requests: Requests
    steps: StepColumns
    records: Sequence[StepRecord]
    submitted: Sequence[int]
    core: EngineCore
    table: RequestTable


def serve(
    trace: Trace,
    cost: StepCost,
    engine: EngineSetup,
    *,
    hashes: BlockHashes | None,
    make_executor: Callable[[RequestTable, EngineCore], Executor],
    make_clock: Callable[[], WallClock],
    router: RouterConfig,
    router_seed: np.random.SeedSequence,
    signal_delay_ns: int = 0,
    max_concurrency: int | None = None,
    on_share_done: Callable[[], None] | None = None,
    until_ns: int | None = None,
) -> Served:
    """Replay `trace` in real time on one engine, to the end of its last request.

    The clock starts when executor and engine are made. `cost` is for policies that ask what a step would take.
    `until_ns` bounds the run: whoever is not done by then counts as not completed.
    """
    timeline = Timeline()
    table = RequestTable(trace, hashes)
    connections = None
    if engine.contracts is not None:
        connections = Connections(engine.contracts, engine.contracts.lanes_of(table.tenant))
    rng = np.random.default_rng(router_seed)
    cluster = Cluster(timeline.env, table, router.build(), rng, signal_delay_ns, connections)
    cluster.on_share_done = on_share_done
    core = engine.build(table, cost)
    executor = make_executor(table, core)
    clock = make_clock()
    replica = EngineReplica(core, executor, clock, timeline)
    replica.on_step = cluster.stepped
    cluster.add(replica)  # type: ignore[arg-type]
    if router.watches_caches:
        cluster.watch_caches()
    client = Client(timeline.env, table, cluster.arrive, max_concurrency)
    done = _Done(len(table), client)
    cluster.on_done = done
    collecting = gc.isenabled()
    gc.disable()
    try:
        _loop(replica, executor, clock, timeline, done, until_ns)
    finally:
        if collecting:
            gc.enable()
    return Served(
        Requests(cluster.requests.columns()),
        replica.log.columns(core, timeline.env.now_ns),
        replica.records,
        replica.submitted,
        core,
        table,
    )


class _Done:
    """Counts the requests that are done or refused, and tells the client."""

    def __init__(self, count: int, client: Client) -> None:
        self.left = count
        self._client = client

    def __call__(self, indices: Sequence[int]) -> None:
        self.left -= len(indices)
        self._client.done(indices)


def _loop(
    replica: EngineReplica,
    executor: Executor,
    clock: WallClock,
    timeline: Timeline,
    done: _Done,
    until_ns: int | None,
) -> None:
    now = clock.now_ns()
    timeline.advance(now)
    timeline.release()
    while done.left:
        if until_ns is not None and now >= until_ns:
            return
        end = replica.turn(now)
        if end is not None:
            now = end
            continue
        wakes = [time for time in (timeline.next_ns, replica.core.wake_ns) if time is not None]
        if executor.moving:
            wakes.append(now + _LOOK_NS)
        if not wakes:
            raise InvariantError(f"{done.left} requests are not done, and nothing will happen")
        clock.wait_until(min(wakes))
        now = max(clock.now_ns(), now)
        timeline.advance(now)
        timeline.release()
