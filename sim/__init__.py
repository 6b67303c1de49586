"""The simulator: router, batcher, KV blocks, engine loop, cost model, studies.

The Python API is what the commands stand on: `load_scenario`, `simulate`, `compare`, `plan`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario.reading import load_scenario
    from sim.scenario.sections import Scenario
    from sim.simulation import Result, simulate
    from sim.studies.compare import compare
    from sim.studies.plan import plan

__all__ = ["Result", "Scenario", "compare", "load_scenario", "plan", "simulate"]

_HOME = {
    "Result": "sim.simulation",
    "Scenario": "sim.scenario.sections",
    "compare": "sim.studies.compare",
    "load_scenario": "sim.scenario.reading",
    "plan": "sim.studies.plan",
    "simulate": "sim.simulation",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever the name stands for
    """Import on first use: most of what a command imports it does not need."""
    if name not in _HOME:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
