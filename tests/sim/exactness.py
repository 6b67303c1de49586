"""That taking many steps at once changes nothing: two runs have the same records and summaries, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from sim.cost import StepCost
from sim.engine.records import StepColumns
from sim.links.network import Network
from sim.metrics import Requests, kv_usage, serving_metrics, stage_statistics
from sim.run_directory import json_text
from sim.scenario.reading import load_scenario
from sim.simulation import Result, simulate
from tests.sim.engines import run
from workloads.trace import Trace

Records = tuple[Requests, tuple[StepColumns, ...]]
"""What `run` gives: all requests, and the steps of each replica."""


def assert_same_columns(columns: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Of the same names and types, bit for bit; a value that is no array (a total, an account) is equal."""
    assert columns.keys() == others.keys()
    for name, column in columns.items():
        other = others[name]
        if isinstance(column, np.ndarray):
            assert column.dtype == other.dtype, name
            assert np.array_equal(column, other, equal_nan=column.dtype.kind == "f"), name
        else:
            assert column == other, name


def assert_same_records(one: Records, other: Records) -> None:
    assert_same_columns(one[0].columns, other[0].columns)
    for log, its in zip(one[1], other[1], strict=True):
        assert_same_columns(_columns_of(log), _columns_of(its))


def assert_same_results(one: Result, other: Result) -> None:
    """Records of requests, steps, links and pages, and all of the summary but its date."""
    assert_same_records((one.requests, one.replicas), (other.requests, other.replicas))
    for mine, its in ((one.links, other.links), (one.paging, other.paging)):
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            assert_same_columns(mine.columns, its.columns)
    if one.paging is not None and other.paging is not None:
        for steps, others in zip(one.paging.steps, other.paging.steps, strict=True):
            assert np.array_equal(steps, others)
    assert json_text({**one.summary, "date": ""}) == json_text({**other.summary, "date": ""})


def assert_engine_exact(
    trace: Trace,
    cost: StepCost,
    *,
    usable_blocks: int,
    network: Callable[[], Network] | None = None,
    **options: Any,
) -> None:
    """Of `run` with these options; `network` makes the links of each of the two runs."""
    runs = [
        run(
            trace,
            cost,
            usable_blocks=usable_blocks,
            network=network() if network is not None else None,
            fast_forward=fast_forward,
            **options,
        )
        for fast_forward in (True, False)
    ]
    assert_same_records(*runs)
    fast, slow = (_summary(*records, usable_blocks) for records in runs)
    assert fast == slow


def assert_scenario_exact(raw: Mapping[str, Any], overrides: Sequence[str] = ()) -> Result:
    """Of a whole scenario, whose run is given."""
    fast = simulate(load_scenario(raw, overrides))
    slow = simulate(load_scenario(raw, [*overrides, "simulation.fast_forward=false"]))
    assert_same_results(fast, slow)
    return fast


def _columns_of(log: StepColumns) -> dict[str, Any]:
    return {field.name: getattr(log, field.name) for field in fields(log)}


def _summary(done: Requests, logs: tuple[StepColumns, ...], usable_blocks: int) -> dict[str, Any]:
    return {
        **serving_metrics(done, logs, {"ttft": 0.02, "tpot": 0.002}),
        **stage_statistics(done),
        "kv": kv_usage(logs, usable_blocks, done.duration_ns),
    }
