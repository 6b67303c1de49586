"""The requests of a study: the same at other rates, all at once, and under other seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import ConfigError
from sim.scenario.sections import Scenario
from sim.simulation import build_load
from workloads.arrivals import mean_rate
from workloads.build import Workload
from workloads.model import SHIPPED, is_model_file
from workloads.trace import Trace


class Stream:
    """Requests of a scenario by rate, number and seed. Its own rate is `request_rate`, or that of the trace's times."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.workload
        if config.max_concurrency is not None:
            raise ConfigError(
                f"workload.max_concurrency: {config.max_concurrency}: a closed loop sends as fast as it is served, so "
                "there is no rate to plan for; give request_rate, or a trace with its own times"
            )
        if config.ramp_up_strategy is not None:
            raise ConfigError("workload.ramp_up_strategy: a plan is for one rate; give request_rate instead")
        if config.request_rate is not None and math.isinf(config.request_rate):
            raise ConfigError("workload.request_rate: inf has no rate to plan for; give a finite one")
        sessions = config.sessions
        if sessions is not None and getattr(sessions.context_policy, "summary_request", False):
            raise ConfigError(
                "workload.sessions.context_policy.summary_request: a plan's rate is one of turns, and summaries are "
                "requests besides; set it to false"
            )
        self._scenario = scenario
        own = build_load(scenario).trace
        self.num_requests = len(own)
        self.rate = config.request_rate or mean_rate(own.arrival_ns)
        if math.isinf(self.rate):
            raise ConfigError(
                "workload.trace: all requests arrive at once, so there is no rate; give request_rate"
            )
        self.can_draw = config.trace is None or config.trace in SHIPPED or is_model_file(Path(config.trace))

    def scenario(self, rate: float, replicas: int, seed: int, num_requests: int) -> Scenario:
        """The scenario at another rate, size and seed; a file has the requests that it has."""
        change: dict[str, Any] = {}
        if rate != self.rate:
            change["request_rate"] = rate
        count = num_requests if self.can_draw else self.num_requests
        if change or count != self.num_requests:
            change |= {"num_requests": count, "duration_s": None}  # the same requests at any rate
        cluster = self._scenario.cluster.model_copy(update={"replicas": replicas})
        workload = self._scenario.workload.model_copy(update=change)
        return self._scenario.model_copy(update={"cluster": cluster, "workload": workload, "seed": seed})


def at_once(load: Workload) -> Workload:
    """The same requests, all of them at the start: none waits for another."""
    trace = load.trace.with_columns(arrival_ns=np.zeros(len(load.trace), dtype=np.int64))
    return Workload(replace(trace, turns=None if trace.turns is None else trace.turns.without_waits()))


def same_requests(one: Trace, other: Trace) -> bool:
    """Whether two traces ask for the same at the same times, or as long after the same answers."""
    return np.array_equal(one.input_tokens, other.input_tokens) and same_turns(one, other)


def same_turns(one: Trace, other: Trace) -> bool:
    """The same, but for the lengths of the prompts: each request of one has its like in the other, at its place."""
    columns = ("arrival_ns", "output_tokens", "session", "tenant", "priority")
    if len(one) != len(other) or (one.turns is None) != (other.turns is None):
        return False
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    if one.turns is not None and other.turns is not None:
        pairs += [
            (getattr(one.turns, name), getattr(other.turns, name)) for name in ("predecessor", "think_ns")
        ]
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def replication_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Seeds of the replications: the scenario's own, and others that follow from it and their number."""
    derived = (int(np.random.SeedSequence([seed, r]).generate_state(1)[0]) for r in range(1, count))
    return (seed, *derived)
