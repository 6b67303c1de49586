"""Metrics of studies are those of a run's summary, over any selection of requests."""

from __future__ import annotations

import numpy as np
import pytest

from sim.metrics import serving_metrics
from sim.studies.observations import METRICS, observe, split_metric
from sim.studies.statistics import block_weights
from tests.sim.doubles import AffineCost
from tests.sim.engines import run, trace_of
from tests.sim.sessions import session_trace

SLO = {"ttft": 9.0, "tpot": 2.0}


@pytest.fixture
def outcome():
    """Sixty requests with preemptions, a refused one every seventh, and some of a single token."""
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.integers(0, 4_000_000, 60)).tolist()
    requests = [
        (at, 200 if i % 7 == 3 else int(rng.integers(1, 60)), 1 if i % 5 == 0 else int(rng.integers(2, 20)))
        for i, at in enumerate(arrivals)
    ]
    cost = AffineCost(per_seq_ns=100_000, per_prefill_token_ns=20_000)
    return run(trace_of(*requests), cost, usable_blocks=40)


def test_the_numbers_of_the_summary(outcome):
    requests, replicas = outcome
    assert requests.columns["preemptions"].sum() > 0
    summary = serving_metrics(requests, replicas, SLO)
    seen = observe(requests, SLO)
    values = dict(zip(METRICS, seen.estimate(np.ones(len(seen), dtype=np.int64)), strict=True))
    assert summary["failed"] > 0
    for name, value in values.items():
        assert value == pytest.approx(summary[name], rel=1e-9), name
    assert seen.latency("p95", "ttft") == pytest.approx(summary["p95_ttft_ms"])


def test_the_numbers_of_the_summary_where_turns_wait_for_answers():
    """Arrivals then come in another order than that of the trace."""
    rng = np.random.default_rng(2)
    talks = [
        (
            int(start),
            [(int(think), 9, 5) for think in rng.integers(0, 2_000_000, 3)],
        )
        for start in np.cumsum(rng.integers(0, 2_000_000, 20))
    ]
    cost = AffineCost(per_seq_ns=100_000, per_prefill_token_ns=20_000)
    requests, replicas = run(session_trace(talks, 4), cost)
    assert np.any(np.diff(requests.columns["arrival_ns"]) < 0)
    summary = serving_metrics(requests, replicas, SLO)
    seen = observe(requests, SLO)
    values = dict(zip(METRICS, seen.estimate(np.ones(len(seen), dtype=np.int64)), strict=True))
    for name, value in values.items():
        assert value == pytest.approx(summary[name], rel=1e-9), name


def test_weights_are_repetitions(outcome):
    seen = observe(outcome[0], SLO)
    weights = np.random.default_rng(1).integers(0, 4, len(seen))
    values = dict(zip(METRICS, seen.estimate(weights), strict=True))
    repeated = np.repeat(seen.e2el_ms, weights)
    repeated = repeated[~np.isnan(repeated)]
    assert values["mean_e2el_ms"] == pytest.approx(repeated.mean())
    assert values["p90_e2el_ms"] == pytest.approx(np.percentile(repeated, 90))
    assert values["median_e2el_ms"] == pytest.approx(np.median(repeated))
    tokens = np.repeat(seen.output_tokens, weights).sum()
    assert values["output_throughput"] / values["request_throughput"] == pytest.approx(
        tokens / np.repeat(seen.completed, weights).sum()
    )


def throughput(seen, weights):
    return seen.estimate(weights)[METRICS.index("request_throughput")]


def test_where_the_service_keeps_up_a_rate_is_that_of_the_arrivals_resampled():
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.exponential(50e6, 400)).astype(int).tolist()
    requests, _ = run(trace_of(*((at, 10, 5) for at in times)), AffineCost())
    seen = observe(requests, {})
    assert throughput(seen, np.ones(400, dtype=np.int64)) == pytest.approx(400e9 / requests.duration_ns)
    first_half = np.repeat([2, 0], 200)
    assert throughput(seen, first_half) == pytest.approx(200e9 / times[199], rel=0.01)


def test_where_it_does_not_that_of_the_departures():
    requests, _ = run(trace_of(*((0, 10, 3 if i < 200 else 9) for i in range(400))), AffineCost())
    seen = observe(requests, {})
    assert throughput(seen, np.ones(400, dtype=np.int64)) == pytest.approx(400e9 / requests.duration_ns)
    first_half = np.repeat([2, 0], 200)
    assert throughput(seen, first_half) == pytest.approx(
        200e9 / np.sort(requests.last_token_ns)[199], rel=0.05
    )


def test_the_end_of_the_run_counts_as_chance():
    # Requests of one kind: how long the run goes on after the last arrival differs from end to end.
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 60, 400).tolist()
    requests, _ = run(trace_of(*(((i + 1) * 30_000_000, 10, n) for i, n in enumerate(lengths))), AffineCost())
    seen = observe(requests, {})
    rates = [throughput(seen, block_weights(rng, 400)) for _ in range(400)]
    durations = 400 / np.array(rates)
    assert durations.std() == pytest.approx(np.sqrt(np.square(seen.lag_s).mean()), rel=0.3)


def test_but_not_for_more_where_neighbours_end_alike():
    # Every second hundred of requests is of the long kind, so that a block is long or short as a whole.
    rng = np.random.default_rng(4)
    lengths = [500 if i // 100 % 2 else 5 for i in range(2000)]
    requests, _ = run(
        trace_of(*(((i + 1) * 300_000_000, 10, n) for i, n in enumerate(lengths))),
        AffineCost(base_ns=1_000_000),
    )
    seen = observe(requests, {})
    assert seen.lag_s.std() > 0.1
    durations = [2000 / throughput(seen, block_weights(rng, 2000)) for _ in range(400)]
    assert np.std(durations) == pytest.approx(np.sqrt(np.square(seen.lag_s).mean()), rel=0.3)


def test_a_refused_request_is_not_good_and_has_no_latency():
    requests, _ = run(trace_of((0, 4, 3), (5, 500, 3), (9, 4, 3)), AffineCost(), max_model_len=100)
    seen = observe(requests, {"e2el": 1e9})
    assert seen.good.tolist() == [True, False, True]
    assert np.isnan(seen.ttft_ms).tolist() == [False, True, False]
    assert seen.output_tokens.tolist() == [3, 0, 3]


def test_a_refused_request_can_count_as_the_slowest(outcome):
    seen = observe(outcome[0], SLO)
    refused = 60 - int(seen.completed.sum())
    endless = np.sort(np.where(seen.completed, seen.ttft_ms, 1e12))
    assert refused > 6
    assert seen.latency_of_all("median", "ttft") == pytest.approx(np.median(endless))
    assert seen.latency_of_all("p80", "ttft") == pytest.approx(np.percentile(endless, 80))
    assert seen.latency_of_all("p99", "ttft") == np.nanmax(seen.ttft_ms)
    assert seen.latency_of_all("mean", "ttft") == seen.latency("mean", "ttft")


def test_all_refused_leaves_rates_of_zero_and_no_latencies():
    requests, _ = run(trace_of((0, 500, 3), (1_000_000, 500, 3)), AffineCost(), max_model_len=100)
    values = dict(zip(METRICS, observe(requests, SLO).estimate(np.ones(2, dtype=np.int64)), strict=True))
    assert values["request_throughput"] == values["request_goodput"] == 0
    assert np.isnan(values["mean_ttft_ms"])
    assert np.isnan(values["mean_itl_ms"])


def test_the_first_can_be_left_out(outcome):
    seen = observe(outcome[0], SLO)
    later = seen.since(20)
    assert len(later) == 40
    assert later.latency("mean", "ttft") == pytest.approx(np.nanmean(seen.ttft_ms[20:]))


@pytest.mark.parametrize(
    ("metric", "parts"),
    [
        ("p99_ttft_ms", ("p99", "ttft")),
        ("p99.9_tpot_ms", ("p99.9", "tpot")),
        ("mean_e2el_ms", ("mean", "e2el")),
        ("p99_itl_ms", None),
        ("p100_ttft_ms", None),
        ("max_ttft_ms", None),
        ("p99_ttft", None),
    ],
)
def test_names_of_metrics(metric, parts):
    assert split_metric(metric) == parts
