"""The runs of a confirmation: short loads that calibrate the engine, then the arms, in turns and again and again.

Who calibrates is the engine itself, under every arm's own policies, since what a policy costs is part of a step; on
loads that are not the confirmation's: closed loops of random lengths within its range, from one sequence to all seats.

A machine is not the same from one minute to the next. So there is a probe between any two runs: a second or so of
calibration loads, whose steps also enter the fit. A run is simulated at the prices of the whole fit, times how much
longer than those the steps of the two probes beside it took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

import numpy as np

from calibration.confirmation.cost import StepFit, StepTable, fit_steps, free
from calibration.confirmation.service import device_service, listed_cost, model_of
from hwbackend.device import Device
from hwbackend.engine.realtime import Served
from hwbackend.engine.replay import first_difference
from hwbackend.engine.server import EngineServer
from hwbackend.engine.step_records import StepRecord
from hwbackend.engine.transformer import Transformer
from hwbackend.harness import DISTURBED, disturbance
from sim.batching.chunked import Chunked
from sim.cost.step_cost import ServiceCost
from sim.errors import InvariantError
from sim.profile import Profile
from sim.scenario.sections import Scenario
from sim.service import Service
from sim.simulation import Result, build_load, engine_setup, serve, simulate
from sim.studies.arms import ArmScenario
from workloads.build import Workload
from workloads.trace import Trace

_REQUESTS: Final = 400  # of a calibration load; time ends it before they do
_SHORT: Final = 8  # part of the longest prompt that is the longest of a load of short ones
_CALIBRATION: Final = 0xCA11  # names the stream of the random lengths
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """A calibration load: sequences in flight, whether prompts are short, prompt tokens of a step (None: all)."""

    seats: int
    short: bool = False
    chunk: int | None = None


@dataclass
class ArmRuns:
    """One arm: its scenario and server, what came of each repetition, and the number of the probe before it."""

    arm: ArmScenario
    server: EngineServer
    results: list[Result] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)
    others_share: list[float] = field(default_factory=list)
    served: Served | None = None
    replayed_steps: int = 0


class Confirmation:
    """All runs on one device. `round` makes another repetition of every arm, after some calibration.

    `listed` is a profile that prices the steps instead; nothing is calibrated then.
    """

    def __init__(
        self,
        arms: Sequence[ArmScenario],
        device: Device,
        profile: Profile,
        say: Say,
        listed: Profile | None = None,
    ) -> None:
        self.device = device
        self.profile = listed or profile
        self.listed = listed
        self.load: Workload = build_load(arms[0].scenario)
        self.model = model_of(arms[0].scenario)
        self._say = say
        self._logs: list[tuple[int, Sequence[StepRecord]]] = []
        self._seed = 0
        self._fit: StepFit | None = None
        self._probes: list[slice] = []
        self.arms: list[ArmRuns] = []
        made: dict[int, Transformer] = {}
        for arm in arms:
            service = self._service(arm.scenario, free())
            longest = service.max_model_len
            shared = made.get(longest)
            server = EngineServer.of(device, self.model, arm.scenario, longest, shared)
            made[longest] = server.transformer
            self.arms.append(ArmRuns(arm, server))

    @property
    def fit(self) -> StepFit:
        """Prices of all arms' steps, by all calibration so far; those of static chunking are the last group."""
        if self._fit is None:
            self._fit = fit_steps(StepTable.of(self._logs), len(self.arms) + 1)
        return self._fit

    @property
    def calibrated_s(self) -> float:
        """Time of all steps that the fit stands on."""
        return sum((r.end_ns - r.start_ns) * 1e-9 for _, records in self._logs for r in records)

    def calibrate(self, seconds: float) -> None:
        """Run calibration loads for about so long: static chunking first, then every arm as it is."""
        if self.listed is not None:
            return
        engine = self.arms[0].arm.scenario.engine
        seats, most = engine.max_num_seqs, engine.max_num_batched_tokens
        half = max(seats // 2, 1)
        loads = [Load(1), Load(seats), Load(seats, short=True)]
        loads += [Load(half, chunk=chunk) for chunk in (32, 128, 512) if chunk < most]
        for load in loads:
            self._calibrate(None, load, seconds / 2 / len(loads))
        self._fit = None
        own = [
            (number, load)
            for number in range(len(self.arms))
            for load in (Load(half), Load(seats, short=True))
        ]
        for number, load in own:
            self._calibrate(number, load, seconds / 2 / len(own))
        self._fit = None

    def probe(self, seconds: float) -> None:
        """See how fast the machine is just now."""
        begin = len(self._logs)
        if self.listed is not None:
            self._probes.append(slice(begin, begin))
            return
        half = max(self.arms[0].arm.scenario.engine.max_num_seqs // 2, 1)
        number = len(self._probes) % len(self.arms)
        for load in (Load(half), Load(half, short=True)):
            self._calibrate(number, load, seconds / 2)
        self._probes.append(slice(begin, len(self._logs)))
        self._fit = None

    def round(self, probe_s: float) -> None:
        """Run every arm once, with a probe before each; the order turns from round to round."""
        turn = len(self.arms[0].results) % len(self.arms)
        for one in (*self.arms[turn:], *self.arms[:turn]):
            self.probe(probe_s)
            self._run(one)

    def simulate(self, one: ArmRuns) -> list[Result]:
        """Every repetition of the arm in simulation, at the prices of the machine as it was then."""
        scenario = one.arm.scenario
        results = []
        for probe in one.probes:
            cost = self._price(one, self.pace(probe))
            results.append(simulate(scenario, self._service(scenario, cost), self.load))
        return results

    def simulate_at_one_pace(self, one: ArmRuns) -> Result:
        """The arm in simulation, at the prices of the whole fit."""
        scenario = one.arm.scenario
        cost = self._price(one, 1.0)
        return simulate(scenario, self._service(scenario, cost), self.load)

    def pace(self, probe: int) -> float:
        """How long the steps of this probe and of the next took, by the prices of the whole fit."""
        if self.listed is not None:
            return 1.0
        beside = [log for part in self._probes[probe : probe + 2] for log in self._logs[part]]
        table = StepTable.of(beside)
        return float(table.seconds.sum() / self.fit.predict(table).sum())

    def _run(self, one: ArmRuns) -> None:
        scenario, probe = one.arm.scenario, len(self._probes) - 1
        cost = self._price(one, self.pace(probe))
        service = self._service(scenario, cost)
        began, before = perf_counter(), self.device.condition()
        result = simulate(scenario, service, self.load, server=one.server)
        _, others = disturbance(before, self.device.condition())
        served = one.server.last
        assert served is not None
        difference = first_difference(served, engine_setup(scenario, service, self.load), cost)
        if difference is not None:
            raise InvariantError(
                f"{one.arm.name}: step {difference[0]} of the engine is {difference[1]}, and its replay {difference[2]}"
            )
        one.results.append(result)
        one.others_share.append(others)
        one.probes.append(probe)
        one.served = one.served or served
        one.replayed_steps += len(served.records)
        e2el = result.summary["mean_e2el_ms"]
        busy = f", others had {others:.0%} of the cores" if others > DISTURBED else ""
        self._say(f"{one.arm.name}: {perf_counter() - began:.1f} s, mean E2EL {e2el:.1f} ms{busy}")

    def _price(self, one: ArmRuns, pace: float) -> ServiceCost:
        if self.listed is not None:
            return listed_cost(one.arm.scenario, self.model, self.listed, self.device)
        return self.fit.cost(self.arms.index(one), pace)

    def _service(self, scenario: Scenario, cost: ServiceCost) -> Service:
        return device_service(scenario, self.device, self.profile, cost, self.model)

    def _calibrate(self, number: int | None, load: Load, seconds: float) -> None:
        """One load; `number` names the arm, None: static chunking, before there are prices."""
        one = self.arms[number or 0]
        scenario = one.arm.scenario
        if number is None:
            most = scenario.engine.max_num_batched_tokens
            batcher = Chunked(chunk_tokens=min(load.chunk or most, most))
            policies = scenario.policies.model_copy(update={"batcher": batcher})
            scenario = scenario.model_copy(update={"policies": policies})
        cost = free() if number is None else self.fit.cost(number)
        one.server.limit_s = seconds
        try:
            serve(scenario, self._service(scenario, cost), self._random(load), one.server)
        finally:
            one.server.limit_s = None
        assert one.server.last is not None
        self._logs.append((len(self.arms) if number is None else number, one.server.last.records))

    def _random(self, load: Load) -> Workload:
        """A closed loop of lengths anywhere within those of the confirmation's load, and in no other way like it."""
        self._seed += 1
        rng = np.random.default_rng([_CALIBRATION, self._seed])
        trace = self.load.trace
        low, high = int(trace.input_tokens.min()), int(trace.input_tokens.max())
        if load.short:
            low, high = 1, max(high // _SHORT, 1)
        inputs = rng.integers(low, high + 1, _REQUESTS)
        outputs = rng.integers(trace.output_tokens.min(), trace.output_tokens.max() + 1, _REQUESTS)
        return Workload(Trace.build(np.zeros(_REQUESTS, dtype=np.int64), inputs, outputs), load.seats)
