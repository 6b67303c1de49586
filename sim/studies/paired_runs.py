"""All arms on the same requests, replication by replication."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.errors import ConfigError
from sim.service import Service
from sim.simulation import Result, build_load, simulate
from sim.studies.arms import ArmScenario
from sim.studies.observations import Observations, observe
from sim.studies.stream import same_requests, same_turns
from workloads.build import Workload

OnRun = Callable[[str, int], None]
"""Called after each run: which it was, and how many runs there are in all."""


class PairedRuns:
    """Runs every arm under each seed, and keeps one row per request of each; whole results of the first seed only."""

    def __init__(
        self,
        arms: Sequence[ArmScenario],
        services: Sequence[Service],
        seeds: Sequence[int],
        on_run: OnRun | None = None,
    ) -> None:
        self.observations: list[list[Observations]] = [[] for _ in arms]
        self.first: list[Result] = []
        self.preemptions = [0] * len(arms)
        self.notes: list[str] = []
        self._arms = arms
        self._services = services
        self._total = len(arms) * len(seeds)
        self._on_run = on_run or (lambda _label, _total: None)
        self.load = self._load(seeds[0])
        for replication, seed in enumerate(seeds):
            if not self._add(replication, seed):
                self.notes.append(
                    "the workload has no randomness, so that replications would be copies: there is one, and the "
                    "intervals say how far these requests vary among themselves"
                )
                break

    @property
    def replications(self) -> int:
        return len(self.observations[0])

    def _load(self, seed: int) -> Workload:
        return build_load(self._arms[0].scenario.model_copy(update={"seed": seed}))

    def _loads(self, seed: int, first: Workload) -> list[Workload]:
        """The load of each arm: the first arm's, but where an arm has sessions of its own."""
        loads = []
        for arm in self._arms:
            load = first
            if arm.scenario.workload != self._arms[0].scenario.workload:
                load = build_load(arm.scenario.model_copy(update={"seed": seed}))
                if not same_turns(load.trace, first.trace):
                    raise ConfigError(
                        f"--vary: the requests of {arm.name} cannot be paired with those of {self._arms[0].name}: "
                        "requests for summaries come on top of the turns; set summary_request: false"
                    )
            loads.append(load)
        return loads

    def _add(self, replication: int, seed: int) -> bool:
        """Run a replication in every arm; False where it could not differ from the first."""
        load = self._load(seed) if replication else self.load
        copied = replication > 0 and same_requests(load.trace, self.load.trace)
        if copied and all(arm.scenario.cluster.replicas == 1 for arm in self._arms):
            return False
        results = [
            self._run(arm, service, seed, own)
            for arm, service, own in zip(self._arms, self._services, self._loads(seed, load), strict=True)
        ]
        limits_ms = self._arms[0].scenario.slo.limits_ms
        seen = [observe(result.requests, limits_ms) for result in results]
        # With several replicas the router may draw, so only the runs themselves can tell.
        if copied and all(_same(one, arm[0]) for one, arm in zip(seen, self.observations, strict=True)):
            return False
        if replication == 0:
            self.first = results
        for at, result in enumerate(results):
            self.observations[at].append(seen[at])
            self.preemptions[at] += int(result.requests.columns["preemptions"].sum())
        return True

    def _run(self, arm: ArmScenario, service: Service, seed: int, load: Workload) -> Result:
        result = simulate(arm.scenario.model_copy(update={"seed": seed}), service, load)
        self._on_run(arm.name, self._total)
        return result


def _same(one: Observations, other: Observations) -> bool:
    names = ("ttft_ms", "e2el_ms")
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in names)
