"""The price of engine steps: what the loop asks (step_cost), and how a model on a device answers (compiled)."""

from __future__ import annotations

from sim.cost.step_cost import StepCost, StepParts, Traffic

__all__ = ["StepCost", "StepParts", "Traffic"]
