"""What a step's execution looks like to the loop around it."""

from __future__ import annotations

from typing import Protocol

from sim.engine.core import EngineCore
from sim.engine.plan import BatchPlan
from sim.engine.request import Sequence
from sim.kv.transfer import Transfer


class Executor(Protocol):
    """Runs plans, and moves KV between tiers. One engine, one executor."""

    def start(self, transfers: list[Transfer]) -> None:
        """Begin to move these; returns at once."""

    def landed(self) -> list[Transfer]:
        """Transfers that have ended since the last call."""

    def ready(self, core: EngineCore, plan: BatchPlan) -> None:
        """Fetch what this step itself needs, and wait for all that it must not start without."""

    @property
    def moving(self) -> bool:
        """Whether a transfer is on its way, or has ended and nobody was told."""

    def run(self, core: EngineCore, plan: BatchPlan) -> None:
        """Compute the step; returns when its tokens are there."""

    def ended(self, sequences: list[Sequence]) -> None:
        """These have finished: nothing of them is computed again."""
