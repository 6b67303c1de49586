"""An engine's log through the simulator's core: every batch must be the same at the recorded times.

Requests go to a fresh `EngineCore` at the times at which the engine's got them, each step is planned when the recorded
one started, transfers are known to have landed in the steps that learnt of them. What is in a step is up to core and
policies alone, so a difference means that one of the two is not what it claims to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hwbackend.engine.realtime import Served
from hwbackend.engine.step_records import Batch, StepRecord, TransferNumbers
from sim.cost import StepCost
from sim.engine.cluster import EngineSetup
from sim.kv.transfer import Transfer


def replay(served: Served, engine: EngineSetup, cost: StepCost) -> Iterator[tuple[StepRecord, Batch | None]]:
    """Each recorded step beside what the core decides at its time."""
    table = served.table
    core = engine.build(table, cost)
    arrivals = served.submitted
    on_their_way: dict[int, Transfer] = {}
    numbers = TransferNumbers()
    sent = 0
    for record in served.records:
        while sent < len(arrivals) and table.arrival_ns[arrivals[sent]] <= record.start_ns:
            core.submit(arrivals[sent])
            sent += 1
        for number in record.landed:
            core.landed(on_their_way.pop(number))
        plan = core.schedule(record.start_ns)
        _take(core.take_transfers(), numbers, on_their_way)
        if plan is None:
            yield record, None
            continue
        batch = Batch.of(core, plan)
        core.commit(plan, 1, record.end_ns)
        _take(core.take_transfers(), numbers, on_their_way)
        yield record, batch


def first_difference(
    served: Served, engine: EngineSetup, cost: StepCost
) -> tuple[int, StepRecord, Batch | None] | None:
    """The first step whose batch the replay does not repeat; None where all are the same."""
    for number, (record, batch) in enumerate(replay(served, engine, cost)):
        same = not record.computes if batch is None else batch.ran(0, 0).batch == record.batch
        if not same:
            return number, record, batch
    return None


def _take(asked: Sequence[Transfer], numbers: TransferNumbers, on_their_way: dict[int, Transfer]) -> None:
    numbers.asked(asked)
    for transfer in asked:
        on_their_way[numbers.landed(transfer)] = transfer
