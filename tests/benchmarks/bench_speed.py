"""How fast the simulator is, beside yardsticks of the same run. `pytest tests/benchmarks/bench_speed.py`

Every benchmark says in `extra_info` what was done in a round, so that rates can be read off:
requests, engine steps, decisions. Peak memory is measured by bench_memory.py, in processes of its own.
"""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from sim.scenario.reading import load_scenario
from sim.service import build_service
from sim.simulation import build_load, simulate
from tests.data import ROOT
from tests.sim.doubles import AffineCost
from tests.sim.engines import run
from tests.sim.reference import chunked_engine
from workloads.trace import Trace

AZURE = ROOT / "traces" / "azure_2023_conv.csv"
AZURE_REQUESTS = 19_366


def azure(**changes: object) -> dict:
    """Azure conversations on two H200 of Llama-3.1-8B: the real trace where it is, else the shipped model of it."""
    workload = (
        {"trace": str(AZURE)} if AZURE.exists() else {"trace": "azure-conv", "num_requests": AZURE_REQUESTS}
    )
    return {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200_sxm"},
        "cluster": {"replicas": 2},
        "workload": {**workload, **changes},
    }


def measure(benchmark, raw: dict, rounds: int = 5) -> dict:
    """Time everything between a loaded workload and a finished summary."""
    scenario = load_scenario(raw)
    load, service = build_load(scenario), build_service(scenario)
    result = benchmark.pedantic(simulate, args=(scenario, service, load), rounds=rounds, warmup_rounds=1)
    requests = len(load.trace)
    benchmark.extra_info["requests"] = requests
    benchmark.extra_info["steps"] = result.summary["sim"]["steps"]
    benchmark.extra_info["requests_per_s"] = round(requests / benchmark.stats.stats.median)
    return result.summary


@pytest.mark.benchmark(group="azure")
def test_azure_trace_at_its_own_times(benchmark):
    assert measure(benchmark, azure())["completed"] == AZURE_REQUESTS


@pytest.mark.benchmark(group="azure")
def test_azure_trace_at_twice_the_rate_that_drains(benchmark):
    """The queue grows to the end; `saturation` is the throughput with everything sent at once."""
    scenario = load_scenario(azure(request_rate="inf"))
    saturation = simulate(scenario).summary["request_throughput"]
    summary = measure(benchmark, azure(request_rate=2 * saturation))
    benchmark.extra_info["saturation_requests_per_s"] = round(saturation, 1)
    assert summary["sim"]["stages_ms"]["queue"]["mean"] > 10_000


@pytest.mark.benchmark(group="azure")
def test_yardstick_bare_simpy(benchmark):
    """As many bare timeouts as the Azure run has events, about: two per decision and one per arrival."""
    timeouts = 7 * AZURE_REQUESTS

    def bare() -> None:
        env = simpy.Environment()

        def process():
            for _ in range(timeouts):
                yield env.timeout(1)

        env.process(process())
        env.run()

    benchmark.pedantic(bare, rounds=5, warmup_rounds=1)
    benchmark.extra_info["timeouts"] = timeouts


def decode_heavy(in_flight: int) -> dict:
    return {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200_sxm"},
        "workload": {
            "input_tokens": 128,
            "output_tokens": {"uniform": [512, 1024]},
            "max_concurrency": in_flight,
            "num_requests": 1000,
        },
    }


@pytest.mark.benchmark(group="fast-forward")
@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("load", ["azure", "decode-heavy, 64 in flight", "decode-heavy, 8 in flight"])
def test_fast_forward(benchmark, load, fast_forward):
    """Input 128, output 512 to 1024: with 64 in flight a request finishes every 12 steps, with 8 every 96."""
    raw = azure() if load == "azure" else decode_heavy(64 if "64" in load else 8)
    measure(benchmark, {**raw, "simulation": {"fast_forward": fast_forward}}, rounds=3)


@pytest.mark.benchmark(group="growth: ten times the requests")
@pytest.mark.parametrize("requests", [10_000, 100_000])
def test_growth(benchmark, requests):
    raw = azure(trace="azure-conv", num_requests=requests, request_rate=5.5)
    measure(benchmark, raw, rounds=3)


@pytest.mark.benchmark(group="a naive engine")
@pytest.mark.parametrize("engine", ["servetwin", "naive"])
def test_against_a_naive_engine(benchmark, engine):
    """The same load through the reference engine of the tests: every sequence and token in Python."""
    rng = np.random.default_rng(0)
    n = 400
    load = [
        (int(t), int(i), int(o))
        for t, i, o in zip(
            np.cumsum(rng.exponential(2e7, n)), rng.integers(10, 500, n), rng.integers(1, 400, n), strict=True
        )
    ]
    cost = AffineCost(base_ns=5_000_000, per_seq_ns=50_000, per_prefill_token_ns=30_000)
    if engine == "naive":
        benchmark.pedantic(
            chunked_engine,
            args=(load, cost),
            kwargs={"seats": 64, "budget": 512, "block_size": 16, "blocks": 4000},
            rounds=3,
        )
    else:
        trace = Trace.build(*zip(*load, strict=True))
        limits = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "block_size": 16, "usable_blocks": 4000}
        benchmark.pedantic(run, args=(trace, cost), kwargs=limits, rounds=3)


@pytest.mark.benchmark(group="pricing a step")
@pytest.mark.parametrize("call", ["decode", "window of 20", "mixed"])
def test_pricing(benchmark, call):
    cost = build_service(load_scenario(azure())).cost
    calls = {
        "decode": lambda: cost.decode_ns(32, 40_000, 0),
        "window of 20": lambda: cost.decode_window_ns(32, 40_000, 0, 0, 20),
        "mixed": lambda: cost.mixed_ns(32, 40_000, 0, ((1000, 0),)),
    }
    benchmark(calls[call])
