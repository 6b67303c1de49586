"""The verdict: its laws on any numbers, then the bounds that it draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibration.confirmation.outcome import (
    METRICS,
    TOLERANCE,
    ArmOutcome,
    Outcome,
    arm_outcome,
    compare_arms,
    compared_metrics,
)
from calibration.confirmation.text import markdown_table, outcome_lines, verdict
from sim.errors import ConfigError

DECIDING = "mean_e2el_ms"
milliseconds = st.floats(0.1, 1e5)
factors = st.floats(0.01, 100)


def metrics(ms: float) -> dict[str, float]:
    """Latencies of so many milliseconds, and the throughput of one token in each of them."""
    return {name: 1e3 / ms if name == "output_throughput" else ms for name in METRICS}


def arm(
    name: str, simulated: float, measured: Sequence[float], paces: Sequence[float] | None = None
) -> ArmOutcome:
    """An arm by its milliseconds: simulated at one pace, and at that of each repetition."""
    return arm_outcome(
        name,
        name,
        repetitions=[metrics(ms) for ms in measured],
        simulations=[metrics(simulated * pace) for pace in paces or [1.0] * len(measured)],
        at_one_pace=metrics(simulated),
        others_share=[0.0] * len(measured),
        steps=10,
        replayed_steps=10,
    )


def outcome_of(*arms: ArmOutcome, metric: str = DECIDING) -> Outcome:
    base, *others = arms
    return Outcome(
        device={"kind": "cpu", "name": "a machine"},
        metric=metric,
        arms=arms,
        comparisons=[compare_arms(one, base, metric) for one in others],
        calibration={},
        seconds=1.0,
        notes=[],
    )


# Laws.


@given(milliseconds, milliseconds, st.sampled_from(METRICS), st.integers(2, 6))
def test_a_device_that_does_as_simulated_confirms_all_of_it(first, second, metric, repetitions):
    found = outcome_of(
        arm("base", first, [first] * repetitions), arm("other", second, [second] * repetitions), metric=metric
    )
    (one,) = found.comparisons
    assert one.gain_measured == pytest.approx(one.gain_simulated)
    assert one.gain_held
    assert found.accurate
    assert not found.refuted
    assert all(error == pytest.approx(0, abs=1e-9) for one in found.arms for error in one.error.values())
    if abs(one.gain_simulated) > 1e-6:
        assert found.ordering_held
        assert [found.repetition_held(number) for number in range(repetitions)] == [True] * repetitions


@given(milliseconds, milliseconds, st.lists(factors, min_size=2, max_size=5))
def test_the_pace_of_the_machine_is_neither_a_gain_nor_noise(first, second, paces):
    """It slows both arms of a repetition alike; gains are paired, and those of simulation at one pace."""
    found = outcome_of(
        arm("base", first, [first * pace for pace in paces], paces),
        arm("other", second, [second * pace for pace in paces], paces),
    )
    (one,) = found.comparisons
    assert one.gain_measured == pytest.approx(one.gain_simulated)
    assert one.noise == pytest.approx(0, abs=1e-6 * (1 + abs(one.gain_measured)))
    assert found.accurate


@given(milliseconds, milliseconds, st.lists(st.tuples(milliseconds, milliseconds), min_size=1, max_size=5))
def test_a_gain_has_no_unit(first, second, measured):
    times, others = zip(*measured, strict=True)
    one = compare_arms(arm("other", second, others), arm("base", first, times), DECIDING)
    scaled = compare_arms(
        arm("other", 8 * second, [8 * ms for ms in others]),
        arm("base", 8 * first, [8 * ms for ms in times]),
        DECIDING,
    )
    assert scaled == one  # a power of two rounds nothing


@given(milliseconds, milliseconds, st.lists(st.tuples(factors, factors), min_size=2, max_size=6))
def test_intervals_are_students(first, second, measured):
    times, others = (list(side) for side in zip(*measured, strict=True))
    base, other = arm("base", first, times), arm("other", second, others)
    one = compare_arms(other, base, DECIDING)
    gains = 1 - np.array(others) / np.array(times)
    quantile = stats.t.ppf(0.975, len(gains) - 1) / np.sqrt(len(gains))
    assert one.noise == pytest.approx(quantile * np.std(gains, ddof=1), rel=1e-6, abs=1e-9)
    assert one.interval == pytest.approx((one.gain_measured - one.noise, one.gain_measured + one.noise))
    assert one.judged == (abs(one.gain_simulated) > one.noise)
    half = quantile * np.std(times, ddof=1)
    mean = np.mean(times)
    assert base.interval[DECIDING] == pytest.approx((mean - half, mean + half), rel=1e-6, abs=1e-9)


@given(milliseconds, milliseconds, milliseconds, milliseconds)
def test_one_repetition_says_nothing_of_an_ordering(first, second, third, fourth):
    found = outcome_of(arm("base", first, [second]), arm("other", third, [fourth]))
    assert found.judged == []
    assert found.ordering_held is None
    assert found.gain_held is None
    assert not found.refuted
    assert found.arms[0].interval[DECIDING] is None
    assert "nothing to confirm" in verdict(found)


# The bounds.


def test_the_other_sign_is_an_ordering_that_did_not_hold():
    found = outcome_of(arm("base", 100, [100, 101, 99]), arm("other", 80, [120, 121, 119]))
    assert found.ordering_held is False
    assert found.gain_held is False
    assert found.refuted
    assert not any(found.repetition_held(number) for number in range(3))
    assert "did not hold" in verdict(found)


def test_what_is_within_the_noise_is_not_judged():
    found = outcome_of(arm("base", 100, [100, 150, 60]), arm("other", 95, [150, 60, 100]))
    (one,) = found.comparisons
    assert one.noise > one.gain_simulated > 0
    assert not one.judged
    assert not found.refuted
    assert "nothing to confirm" in verdict(found)


@pytest.mark.parametrize(
    ("measured", "held"), [(81, False), (79, True), (61, True), (59, False)]
)  # gains of 19%, 21%, 39%, 41%
def test_a_gain_holds_from_half_to_twice_the_simulated_one(measured, held):
    if measured < 70:  # twice of a gain of 20%
        found = outcome_of(arm("base", 100, [100] * 3), arm("other", 80, [measured] * 3))
    else:  # half of a gain of 40%
        found = outcome_of(arm("base", 100, [100] * 3), arm("other", 60, [measured] * 3))
    assert found.ordering_held
    assert found.gain_held is held


def test_a_rate_is_better_when_it_is_higher():
    base, other = arm("base", 100, [100, 100]), arm("other", 50, [50, 50])
    assert compare_arms(other, base, "output_throughput").gain_measured == pytest.approx(1.0)
    assert compare_arms(other, base, "mean_ttft_ms").gain_measured == pytest.approx(0.5)


@pytest.mark.parametrize(("metric", "limit"), TOLERANCE.items())
@pytest.mark.parametrize(("share", "right"), [(0.99, True), (1.01, False), (-0.99, True), (-1.01, False)])
def test_a_metric_is_right_within_its_tolerance(metric, limit, share, right):
    simulated = {**metrics(100), metric: 100 * (1 + share * limit)}
    base = arm_outcome(
        "base",
        "base",
        repetitions=[metrics(100)] * 3,
        simulations=[simulated, simulated, simulated],
        at_one_pace=metrics(100),
        others_share=[0.0] * 3,
        steps=10,
        replayed_steps=10,
    )
    found = outcome_of(base, arm("other", 50, [50] * 3))
    assert found.accurate is right
    assert found.repetition_held(1) is right
    assert base.within == {name: right or name != metric for name in TOLERANCE}


def test_repetitions_are_judged_one_by_one():
    found = outcome_of(arm("base", 100, [100, 100, 150]), arm("other", 50, [50, 50, 50]))
    assert [found.repetition_held(number) for number in range(3)] == [True, True, False]


def test_the_leading_comparison_is_the_widest_against_the_first_arm():
    arms = [arm("base", 100, [100, 100]), arm("worse", 150, [150, 150]), arm("better", 80, [80, 80])]
    assert outcome_of(*arms).leading.arm == "worse"


@pytest.mark.parametrize("value", [None, 0.0])
def test_a_load_without_a_metric_is_refused(value):
    with pytest.raises(ConfigError, match="gives no mean_tpot_ms"):
        compared_metrics({**metrics(5), "mean_tpot_ms": value})
    assert compared_metrics({**metrics(5), "another": 1}) == metrics(5)


def test_the_document_is_json_and_says_what_the_outcome_says():
    found = outcome_of(arm("base", 100, [100, 110, 90]), arm("other", 80, [81, 87, 73]))
    document = found.as_json()
    assert json.loads(json.dumps(document)) == document
    (one,) = found.comparisons
    assert document["gain_interval"] == list(one.interval)
    assert (document["ordering_held"], document["gain_judged"]) == (True, True)
    assert document["repetitions_held"] == [True] * 3
    assert isinstance(document["arms"][0]["interval"], Mapping)


def test_words_name_every_arm_and_end_with_the_verdict():
    found = outcome_of(arm("base", 100, [100, 110, 90]), arm("other", 80, [81, 87, 73]))
    lines = outcome_lines(replace(found, notes=["something to know"])).splitlines()
    assert lines[-1] == verdict(found)
    assert "note: something to know" in lines
    assert [line for line in lines if line.startswith("other against base: gain +20.0% simulated")]
    table = markdown_table([("one", found), ("two", found)]).splitlines()
    assert len(table) == 2 + 4
    assert {row.count("|") for row in table} == {9}
