"""Against queueing theory, with steps that all cost the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.sim.doubles import constant_cost
from tests.sim.engines import run
from workloads.trace import Trace

STEP_NS = 1_000_000


def batch_means(values: np.ndarray, batches: int = 40) -> tuple[float, float]:
    """Mean and half-width of its 99% interval, by batch means (t with 39 degrees of freedom)."""
    means = values[: values.size // batches * batches].reshape(batches, -1).mean(axis=1)
    return float(means.mean()), 2.708 * float(means.std(ddof=1)) / math.sqrt(batches)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_d_1(load):
    """One seat, every request 20 steps: mean wait = load / (2 (1 - load)) x service (Pollaczek-Khinchine)."""
    rng, n, service = np.random.default_rng(1), 60_000, 20 * STEP_NS
    arrivals = np.cumsum(rng.exponential(service / load, n)).astype(np.int64)
    trace = Trace.build(arrivals, np.ones(n), np.full(n, 20))
    requests, _ = run(trace, constant_cost(STEP_NS), max_num_seqs=1)
    wait, half = batch_means(requests.stages_ns["queue"].astype(float))
    assert wait == pytest.approx(load / (2 * (1 - load)) * service, abs=half)
    assert half < 0.12 * wait


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (8, 0.85)])
def test_m_m_c(servers, load):
    """`max_num_seqs` = c servers, exponential outputs: mean wait by Erlang's C formula.

    Whole steps shift it in two known ways: an output is rounded to whole steps, and whoever finds a seat free but
    a step under way waits for its end, half a step on average. The formula is thus met within one step.
    """
    rng, n, mean_steps = np.random.default_rng(2), 60_000, 250
    outputs = np.maximum(np.rint(rng.exponential(mean_steps, n)), 1)
    service = mean_steps * STEP_NS
    arrivals = np.cumsum(rng.exponential(service / (load * servers), n)).astype(np.int64)
    requests, _ = run(
        Trace.build(arrivals, np.ones(n), outputs),
        constant_cost(STEP_NS),
        max_num_seqs=servers,
        usable_blocks=10**6,
    )
    offered = load * servers
    blocked = offered**servers / math.factorial(servers) / (1 - load)
    erlang_c = blocked / (sum(offered**k / math.factorial(k) for k in range(servers)) + blocked)
    expected = erlang_c * service / (servers * (1 - load))
    wait, half = batch_means(requests.stages_ns["queue"].astype(float))
    assert abs(wait - expected) < half + STEP_NS
    assert half < 0.2 * expected


def test_littles_law_is_an_identity_of_the_records():
    """Time integral of the number in the system = sum of the times in it, to the nanosecond."""
    rng, n = np.random.default_rng(3), 2_000
    arrivals = np.cumsum(rng.exponential(5e6, n)).astype(np.int64)
    trace = Trace.build(arrivals, rng.integers(1, 80, n), rng.integers(1, 60, n))
    requests, (log,) = run(trace, constant_cost(STEP_NS), usable_blocks=400)
    ends = requests.last_token_ns
    times = np.concatenate([arrivals, ends])
    change = np.concatenate([np.ones(n, np.int64), -np.ones(n, np.int64)])
    order = np.argsort(times, kind="stable")
    inside = np.cumsum(change[order])[:-1]
    assert int(inside @ np.diff(times[order])) == int((ends - arrivals).sum())
    running = sum(int(requests.stages_ns[stage].sum()) for stage in ("prefill", "decode"))
    assert int(log.running @ log.row_ns) == running  # the same for those admitted, from the other record


def test_work_is_conserved():
    """A replica is idle only while it has nothing: gaps between its steps hold no waiting request."""
    rng, n = np.random.default_rng(4), 3_000
    arrivals = np.cumsum(rng.exponential(8e6, n)).astype(np.int64)
    trace = Trace.build(arrivals, rng.integers(1, 40, n), rng.integers(1, 12, n))
    requests, (log,) = run(trace, constant_cost(STEP_NS))
    ends = log.start_ns + log.row_ns
    gaps = [(a, b) for a, b in zip(ends[:-1], log.start_ns[1:], strict=True) if b > a]
    assert len(gaps) > 100
    columns = requests.columns
    for start, end in gaps:
        assert not np.any((columns["arrival_ns"] < end) & (columns["last_token_ns"] > start))


def test_overload_serves_at_capacity():
    """At twice the capacity, throughput is the capacity and the queue grows as the difference of the rates."""
    n, outputs, seats = 4_000, 20, 4
    capacity = seats / (outputs * STEP_NS)
    arrivals = (np.arange(n) / (2 * capacity)).astype(np.int64)
    requests, _ = run(
        Trace.build(arrivals, np.ones(n), np.full(n, outputs)), constant_cost(STEP_NS), max_num_seqs=seats
    )
    assert n / requests.duration_ns == pytest.approx(capacity, rel=0.01)
    wait = requests.stages_ns["queue"]
    assert wait[-1] == pytest.approx(n / (2 * capacity), rel=0.02)
    assert np.corrcoef(wait, np.arange(n))[0, 1] > 0.999
