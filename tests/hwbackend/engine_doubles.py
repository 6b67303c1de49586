"""Doubles: time that passes by a cost model, and an executor that computes nothing."""

from __future__ import annotations

from sim.cost import StepCost


class ManualClock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def wait_until(self, when_ns: int) -> None:
        self.time_ns = max(self.time_ns, when_ns)


class PricedExecutor:
    """Takes as long as a cost model says, on a manual clock; transfers land at once."""

    moving = False

    def __init__(self, cost: StepCost, clock: ManualClock) -> None:
        self._cost = cost
        self._clock = clock
        self._landed: list = []

    def start(self, transfers) -> None:
        self._landed += transfers

    def landed(self):
        landed, self._landed = self._landed, []
        return landed

    def ready(self, core, plan) -> None:
        pass

    def run(self, core, plan) -> None:
        self._clock.time_ns += self._cost.mixed_ns(
            plan.decodes, plan.context_tokens, plan.window_context_tokens, plan.shapes
        )

    def ended(self, sequences) -> None:
        pass
