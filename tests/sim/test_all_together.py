"""The KV memory system all together: whatever of it is on, in whatever combination, the laws hold.

Whole scenarios are drawn, section by section, mostly of what goes together and now and then of what does not. One that
is refused must be refused in one line. Of all others: fast-forward is exact (so a run repeats itself), requests and
tokens are conserved, stages sum to latencies, the pool is never exceeded, and nothing happens before its cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.core import EngineCore
from sim.run_directory import request_columns, timeline_columns
from sim.scenario.reading import load_scenario
from sim.simulation import Result, build_load, simulate
from tests.sim.exactness import assert_same_columns, assert_same_results
from tests.sim.random_scenarios.policies import Raw
from tests.sim.random_scenarios.scenarios import scenarios
from tests.sim.random_scenarios.services import COSTS, Cost, service_of
from tests.sim.run_laws import check_laws
from workloads.build import Workload
from workloads.errors import ConfigError


@contextmanager
def checked_engines() -> Iterator[None]:
    """Engines that look at their own books at both ends of every step."""
    commit = EngineCore.commit

    def checked(core: EngineCore, *args: Any) -> Any:
        core.check_integrity()
        done = commit(core, *args)
        core.check_integrity()
        assert 0 <= core.allocator.used_blocks <= core.num_blocks
        return done

    with patch.object(EngineCore, "commit", checked):
        yield


def outcome(raw: Raw, cost: Cost | None, *, fast_forward: bool) -> tuple[Result, Workload]:
    scenario = load_scenario({**raw, "simulation": {"fast_forward": fast_forward}})
    workload = build_load(scenario)
    return simulate(scenario, service_of(scenario, cost), workload), workload


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def check(raw: Raw, cost: Cost | None, fast: Result, load: Workload) -> None:
    """Everything that holds of a scenario, of which one run is given."""
    with checked_engines():
        slow, _ = outcome(raw, cost, fast_forward=False)
    assert_same_results(fast, slow)
    assert_same_columns(timeline_columns(fast), timeline_columns(slow))
    assert_same_columns(
        request_columns(fast.requests, load.trace), request_columns(slow.requests, load.trace)
    )
    check_laws(fast, load)


def test_fast_forward_is_exact_and_laws_hold_whatever_is_on(traces: Path) -> None:
    ran = 0
    refusals: list[str] = []

    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data(), cost=COSTS)
    def holds(data: st.DataObject, cost: Cost | None) -> None:
        nonlocal ran
        raw = data.draw(scenarios(traces))
        try:
            fast, load = outcome(raw, cost, fast_forward=True)
        except ConfigError as error:
            refusals.append(str(error))
            return
        ran += 1
        check(raw, cost, fast, load)

    holds()
    assert ran >= len(refusals)
    assert not [text for text in refusals if "\n" in text]


FOUND = {
    # What had expired was forgotten at the next look-up, and a blocked queue looks once a step, or once a window: what
    # an answer left behind in between was taken for something that is there already.
    "blocks that expire while nobody looks": (
        {
            "engine": {"num_gpu_blocks_override": 8, "enable_prefix_caching": True},
            "policies": {"eviction": {"name": "ttl", "ttl_s": 0.02}},
            "workload": {
                "input_tokens": 13,
                "output_tokens": 20,
                "num_requests": 7,
                "request_rate": 200.0,
                "burstiness": "inf",  # which no summary could say
                "sessions": {"turn_gap_s": 0.005, "waits_for_answer": False},
            },
        },
        Cost(base_ns=1_000_000, per_seq_ns=100_000),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_holds(name: str) -> None:
    sections, cost = FOUND[name]
    raw = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100_sxm"}, **sections}
    check(raw, cost, *outcome(raw, cost, fast_forward=True))
