"""One replica among the links: its transfers on their way, its steps beside them, and what it waited for.

Transfers come first in the sense that they start at once and are slowed by nobody but each other and the links;
on HBM they and the running engine share max-min fairly. For that the engine has a standing flow on HBM while it has
steps to run. A transfer over PCIe takes 64 of 4,800 GB/s on an H200 (1.3%), far below an equal share, so it gets what
PCIe gives and the engine keeps 98.7%. Only copies within HBM could take all of it: one copy beside the engine takes
a third of the bandwidth to read and a third to write.

With tensor parallelism all GPUs of a replica do the same, so one GPU stands for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable
from functools import partial

from simpy import Event

from sim.cost import StepCost
from sim.engine.clock import Clock, Priority, Signal
from sim.engine.plan import BatchPlan
from sim.kv.transfer import Transfer
from sim.links.fabric import Fabric
from sim.links.flow import Flow
from sim.links.machine import Machine
from sim.links.shared_cost import SharedCost

STEP = "step"
"""Owner of the traffic of engine steps."""


class ReplicaLinks:
    """Made by `Network`, driven by a `Replica`.

    wait_ns      how long steps waited for transfers, in all
    step_bytes   that each step moved over HBM, in the order of the step log
    """

    def __init__(self, env: Clock, fabric: Fabric, machine: Machine, latency_ns: int) -> None:
        self.machine = machine
        self._on_their_way: dict[Transfer, None] = {}
        self.wait_ns = 0
        self.step_bytes = array("q")
        self._env = env
        self._fabric = fabric
        self._latency_ns = latency_ns
        self._engine: Flow | None = None
        self._cost: SharedCost | None = None
        self._cleared = Signal(env)
        self._on_landed: Callable[[Transfer], None] | None = None

    def connect(
        self, cost: StepCost, on_change: Callable[[], None], on_landed: Callable[[Transfer], None]
    ) -> SharedCost:
        """Say whom to tell of flows that come and go on HBM and of transfers' ends; returns the price of steps."""
        self._on_landed = on_landed
        self.machine.hbm.watch(lambda _: on_change())
        self._cost = SharedCost(cost, self.share, self.quiet_ns)
        return self._cost

    # Transfers.

    @property
    def blocking(self) -> bool:
        """Whether the next step waits; a transfer may come to block it when it is on its way already."""
        return any(transfer.blocking for transfer in self._on_their_way)

    def send(self, transfers: Iterable[Transfer]) -> None:
        """Start these now."""
        for transfer in transfers:
            self._on_their_way[transfer] = None
            self._fabric.start(
                self.machine.path(transfer.route),
                transfer.num_bytes,
                transfer.owner,
                latency_ns=self._latency_ns,
                on_end=partial(self._end, transfer),
            )

    def _end(self, transfer: Transfer, _: Flow) -> None:
        assert self._on_landed is not None
        self._on_landed(transfer)
        del self._on_their_way[transfer]
        if transfer.blocking and not self.blocking:
            self._cleared.give(Priority.STEP_START)

    def stream(self, route: str, num_bytes: int, owner: str) -> Flow:
        """Start bytes that nobody waits for and that `stop` may end early."""
        return self._fabric.start(self.machine.path(route), num_bytes, owner, latency_ns=self._latency_ns)

    def stop(self, stream: Flow) -> int:
        """End it now, if it has not ended; returns the bytes that came across."""
        self._fabric.cancel(stream)
        return stream.moved_bytes

    # Steps.

    def ready(self, plan: BatchPlan | None) -> Generator[Event, None, int]:
        """Wait until a step of the plan may start, and say how long that took [ns]; without a plan, not at all."""
        since_ns = self._env.now_ns
        if plan is None or self.blocking:
            self._rest()
        if plan is None:
            return 0
        if self.blocking:
            plan.steps = 1  # who arrives meanwhile may change the next one
            yield self._cleared.wait()
            self.wait_ns += self._env.now_ns - since_ns
        if self._engine is None:
            self._engine = self._fabric.hold((self.machine.hbm,), STEP)
        return self._env.now_ns - since_ns

    def _rest(self) -> None:
        if self._engine is not None:
            self._fabric.cancel(self._engine)
            self._engine = None

    def ran(self, steps: int) -> None:
        """The first `steps` of those priced last have run."""
        assert self._cost is not None and self._engine is not None  # noqa: PT018
        moved = self._cost.hbm_bytes[:steps]
        self._engine.credit(int(moved.sum()))
        self.step_bytes.frombytes(moved.tobytes())

    def share(self) -> float:
        """The engine's part of the HBM bandwidth now; exactly 1.0 where it is alone."""
        assert self._engine is not None
        return self._engine.share_of(self.machine.hbm)

    def quiet_ns(self) -> int | None:
        """How long flows on HBM surely stay as they are, if none is started; None: for good."""
        change_ns = self._fabric.next_change_ns(self.machine.hbm)
        return None if change_ns is None else max(change_ns - self._env.now_ns, 0)
