"""The harness: what a sample is, when it stops, and what its interval is worth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwbackend.device import Condition
from hwbackend.harness import Prepared, Rules, disturbance, measure, median_interval
from tests.hwbackend.doubles import FakeDevice

PLAIN = Rules(min_samples=5, max_samples=40, relative_noise=0.02, budget_s=1e9, least_sample_s=0.0)


def run(device, prepared, rules=PLAIN):
    return measure(device, prepared, rules, clock=device.clock)


def test_equal_samples_stop_as_soon_as_the_interval_has_its_confidence():
    device = FakeDevice()
    found = run(device, Prepared((device.taking(2e-3),)))
    assert found.summary.stopped == "noise"
    assert found.summary.samples == 6  # 1 - 2 / 2^6 is the first confidence of at least 95%
    assert found.summary.median_s == pytest.approx(2e-3)
    assert found.summary.relative_noise == pytest.approx(0.0, abs=1e-9)
    assert found.summary.confidence == pytest.approx(1 - 2 / 64)


def test_noisy_samples_go_on_to_the_most_that_are_allowed():
    device = FakeDevice()
    found = run(device, Prepared((device.taking(1e-3, 2e-3),)))
    assert found.summary.stopped == "samples"
    assert found.summary.samples == len(found.samples_s) == PLAIN.max_samples
    assert found.summary.relative_noise > PLAIN.relative_noise
    assert set(np.round(found.samples_s, 9)) == {1e-3, 2e-3}


def test_time_runs_out_but_never_below_the_least_number_of_samples():
    device = FakeDevice()
    rules = Rules(min_samples=5, max_samples=1000, relative_noise=0.0, budget_s=0.05, least_sample_s=0.0)
    found = run(device, Prepared((device.taking(9e-3, 11e-3),)), rules)
    assert found.summary.stopped == "budget"
    assert found.summary.samples == 5
    slow = run(device, Prepared((device.taking(0.9, 1.1),)), rules)
    assert slow.summary.samples == rules.min_samples


def test_short_calls_are_batched_and_times_are_of_one_call():
    device = FakeDevice()
    rules = Rules(least_sample_s=1e-3, budget_s=1e9)
    found = run(device, Prepared((device.taking(1e-5),)), rules)
    assert found.summary.calls_per_sample == 100
    assert found.summary.median_s == pytest.approx(1e-5)


def test_calls_take_turns_and_graphs_hold_every_turn():
    turns = []
    calls = tuple((lambda i=i: turns.append(i)) for i in range(3))
    run(FakeDevice(), Prepared(calls))
    assert turns == [i % 3 for i in range(len(turns))]
    device = FakeDevice(has_graphs=True)
    pace = device.taking(1e-4)
    found = run(device, Prepared((pace, pace, pace)), Rules(least_sample_s=4e-4, budget_s=1e9))
    assert device.captures == 1
    assert found.summary.calls_per_sample == 6  # four would do, six hold every turn twice
    run(device, Prepared((pace,), graph=False))
    assert device.captures == 1


def test_a_flush_stands_before_every_sample_and_outside_its_time():
    device = FakeDevice(flush_s=0.5)
    found = run(device, Prepared((device.taking(1e-4),), flush=True))
    assert device.flushes == found.summary.samples + PLAIN.warmups
    assert found.summary.calls_per_sample == 1
    assert found.summary.median_s == pytest.approx(1e-4)


def test_what_stands_before_and_after_a_sample_is_not_timed():
    device = FakeDevice()
    order = []

    def before():
        order.append("before")
        device.clock.advance(1.0)

    prepared = Prepared(
        (lambda: (order.append("call"), device.clock.advance(1e-3)),),
        before=before,
        after=lambda: order.append("after"),
    )
    found = run(device, prepared)
    assert found.summary.median_s == pytest.approx(1e-3)
    assert order == ["before", "call", "after"] * (len(order) // 3)


def test_what_happens_once_is_sampled_once_and_never_warmed_up():
    device = FakeDevice()
    found = run(device, Prepared((device.taking(0.2), device.taking(0.4)), once=True))
    assert found.samples_s == pytest.approx((0.2, 0.4))


def test_a_clock_that_is_held_back_is_said():
    device = FakeDevice()
    clean = run(device, Prepared((device.taking(1e-3),)))
    assert not clean.summary.disturbed

    def heats():
        device.clock.advance(1e-3)
        device.state["events"] = device.state.get("events", 0) + 1

    assert run(device, Prepared((heats,))).summary.throttled
    device.state["reasons"] = ("hardware thermal slowdown",)
    assert run(device, Prepared((device.taking(1e-3),))).summary.throttled


def test_the_share_of_others_is_what_was_busy_and_not_ours(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = Condition(0, 0, 0, 0, None, None)
    after = Condition(100, 150, 100, 0, None, None)  # 200 were offered: 100 ours, 50 of others
    assert disturbance(before, after) == (False, 0.25)
    slow = Condition(100, 0, 0, 0, 700.0, 1000.0)
    assert disturbance(before, slow)[0]


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60), st.floats(0.5, 0.999))
def test_the_interval_encloses_the_median_and_says_what_it_is_worth(samples, confidence):
    low, high, attained = median_interval(samples, confidence)
    assert min(samples) <= low <= np.median(samples) <= high <= max(samples)
    assert 0 <= attained < 1
    if 1 - 2 * 0.5 ** len(samples) >= confidence:
        assert attained >= confidence
    else:
        assert (low, high) == (min(samples), max(samples))


@pytest.mark.parametrize("count", [6, 9, 20, 50])
def test_the_interval_covers_the_median_as_often_as_it_says(count):
    """Of a skewed distribution, whose mean is far from its median."""
    draws = np.random.default_rng(3).exponential(size=(4000, count))
    covered, promised = 0, 0.0
    for row in draws:
        low, high, promised = median_interval(row.tolist(), 0.95)
        covered += low <= math.log(2) <= high
    share, spread = covered / len(draws), math.sqrt(promised * (1 - promised) / len(draws))
    assert abs(share - promised) < 4 * spread


def test_looking_again_and_again_costs_little_coverage():
    """The stopping rule looks after every sample: at its default least count the median is still covered."""
    random, covered, runs = np.random.default_rng(5), 0, 300
    for _ in range(runs):
        device = FakeDevice()
        times = np.exp(random.normal(0, 0.05, 500))
        found = run(device, Prepared((device.taking(*times),)), Rules(budget_s=1e9, least_sample_s=0.0))
        covered += found.summary.low_s <= 1.0 <= found.summary.high_s
    assert covered / runs > 0.85
