"""One run of a real engine: what was offered to it, on what hardware, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.scenario.sections import Scenario
from workloads.build import Workload

Label = str | int | float

LATENCIES: Final = ("ttft", "tpot", "e2el")
STATISTICS: Final = ("mean", "median", "p90", "p95", "p99")
RATES: Final = ("request_throughput", "output_throughput")
METRICS: Final = tuple(f"{s}_{name}_ms" for name in LATENCIES for s in STATISTICS) + RATES
"""What can be scored: keys of a result file of `vllm bench serve`, by its definitions."""


@dataclass(frozen=True, eq=False)
class Part:
    """What was measured over some of a run's requests: all of them, or those of one stage.

    measured    metric -> value; latencies [ms], rates [1/s]; only what can be trusted
    counted     bool, one entry a request of the workload, in its order; None for all
    labels      what tells this part from the others of its run
    apart       why it is scored apart from the rest; None where it is not
    """

    measured: Mapping[str, float]
    counted: NDArray[np.bool_] | None = None
    labels: Mapping[str, Label] = field(default_factory=dict)
    apart: str | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.measured) - set(METRICS))
        if unknown:
            raise ValueError(f"not metrics: {', '.join(unknown)}")


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One run of a real engine.

    name        unique in its data set
    curve       runs that share it differ in load alone: a fit and a test never share a curve
    labels      data set, engine, system, model, parallelism, precision, load; what scores are grouped by
    scenario    the run as a user would write it down before it; nothing that was measured enters
    parts       what was measured; empty for runs whose results are not known (blind inputs)
    workload    the requests, where they were recorded; else the scenario draws them
    caveats     what is not known about the run, one line each
    """

    name: str
    curve: str
    labels: Mapping[str, Label]
    scenario: Scenario
    parts: tuple[Part, ...]
    workload: Workload | None = None
    caveats: tuple[str, ...] = ()
