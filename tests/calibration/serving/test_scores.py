"""Errors of predictions: laws over random pairs, then a handful by hand; limits that they have to keep."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.predict import Prediction
from calibration.serving.scores import TWIN_REFUSED, Pair, by_metric, grouped, pairs_of, score
from calibration.serving.tolerances import judge, parse_tolerance
from sim.scenario.reading import load_scenario
from workloads.errors import ConfigError

SCENARIO = load_scenario(
    {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100_sxm"},
        "workload": {"input_tokens": 8, "output_tokens": 8, "max_concurrency": 1, "num_requests": 1},
    }
)
VALUES = st.floats(0.001, 1e6)


@st.composite
def pairs(draw):
    numbers = draw(
        st.lists(st.tuples(VALUES, VALUES, st.sampled_from("ab"), st.integers(1, 3)), min_size=1, max_size=30)
    )
    return [
        Pair(f"r{i}", "c", 0, "mean_tpot_ms", {"model": model, "concurrency": seats}, measured, predicted)
        for i, (measured, predicted, model, seats) in enumerate(numbers)
    ]


def pair(measured: float | None, predicted: float | None, **labels: object) -> Pair:
    return Pair(f"run {measured}", "c", 0, "mean_tpot_ms", labels, measured, predicted)


@given(pairs(), st.randoms(use_true_random=False))
def test_order_does_not_matter_to_the_last_bit(some, random):
    mixed = list(some)
    random.shuffle(mixed)
    assert score(mixed) == score(some)


@given(pairs())
def test_scores_are_their_definitions(some):
    errors = np.array([one.predicted / one.measured - 1 for one in some])
    found = score(some)
    assert found.count == len(some)
    assert found.mape == pytest.approx(np.abs(errors).mean(), rel=1e-12)
    assert found.bias == pytest.approx(errors.mean(), abs=1e-12 + 1e-9 * found.mape)
    assert found.p90_abs_pct_err == pytest.approx(np.quantile(np.abs(errors), 0.9), rel=1e-12)
    assert abs(found.worst.error) == np.abs(errors).max()
    assert found.p50_abs_pct_err <= found.p90_abs_pct_err <= found.p99_abs_pct_err <= abs(found.worst.error)
    assert abs(found.bias) <= found.mape * (1 + 1e-12)


@given(pairs(), st.sampled_from([("model",), ("concurrency",), ("model", "concurrency"), ("none",), ()]))
def test_groups_recombine_to_the_whole(some, by):
    whole = score(some)
    groups = [score(members) for members in grouped(some, by).values()]
    assert sum(one.count for one in groups) == whole.count
    assert math.fsum(one.count * one.mape for one in groups) == pytest.approx(whole.count * whole.mape)
    assert math.fsum(one.count * one.bias for one in groups) == pytest.approx(
        whole.count * whole.bias, abs=1e-12 + 1e-9 * whole.count * whole.mape
    )
    assert max(abs(one.worst.error) for one in groups) == abs(whole.worst.error)


@given(pairs())
def test_no_error_scores_zero(some):
    found = score([replace(one, predicted=one.measured) for one in some])
    assert (found.mape, found.bias, found.p50_abs_pct_err, found.p99_abs_pct_err, found.worst.error) == (
        0,
        0,
        0,
        0,
        0,
    )


@given(pairs(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_does_not_matter(some, factor):
    other = [replace(one, measured=factor * one.measured, predicted=factor * one.predicted) for one in some]
    ours, theirs = score(some), score(other)
    assert (ours.mape, ours.bias, ours.p90_abs_pct_err) == (theirs.mape, theirs.bias, theirs.p90_abs_pct_err)


@given(pairs(), st.floats(0.1, 10))
def test_a_common_factor_is_the_bias(some, factor):
    found = score([replace(one, predicted=factor * one.measured) for one in some])
    assert found.bias == pytest.approx(factor - 1, abs=1e-9)
    assert found.mape == pytest.approx(abs(factor - 1), abs=1e-9)


def test_by_hand():
    found = score([pair(10, 11), pair(20, 18), pair(40, 52), pair(100, 100)])
    assert found.mape == pytest.approx(0.125)
    assert found.bias == pytest.approx(0.075)
    assert found.p50_abs_pct_err == pytest.approx(0.1)
    assert found.p90_abs_pct_err == pytest.approx(0.24)  # 0.1 + 0.7 x (0.3 - 0.1)
    assert found.worst.run == "run 40"
    assert found.as_json()["worst"] == {"run": "run 40", "error": pytest.approx(0.3)}


@pytest.mark.parametrize(
    ("measured", "predicted"), [(None, 1.0), (1.0, None), (0.0, 1.0), (-1.0, 1.0), (1.0, math.inf)]
)
def test_what_has_no_error_is_not_scored(measured, predicted):
    assert pair(measured, predicted).error is None
    assert score([pair(measured, predicted)]) is None
    assert score([pair(measured, predicted), pair(2, 3)]).count == 1


def test_metrics_are_never_mixed():
    some = [pair(1, 2), replace(pair(1, 2), metric="mean_ttft_ms")]
    with pytest.raises(ValueError, match="never mixed"):
        score(some)
    assert {metric: len(of_it) for metric, of_it in by_metric(some).items()} == {
        "mean_tpot_ms": 1,
        "mean_ttft_ms": 1,
    }


def test_groups_are_sorted_as_people_do():
    some = [pair(1, 1, seats=value) for value in (16, 8, "inf", 128)] + [pair(1, 1)]
    assert list(grouped(some, ("seats",))) == [(8,), (16,), (128,), ("inf",), (None,)]


def test_intervals_cover_what_they_hold():
    some = [replace(pair(10, 11), interval=(9, 13)), replace(pair(10, 20), interval=(18, 22)), pair(1, 1)]
    found = score(some)
    assert found.covered == 0.5  # of the two that have one
    assert found.half_width == pytest.approx((2 / 11 + 0.1) / 2)
    assert score([pair(1, 1)]).covered is None


def run(*parts: Part, name: str = "a") -> MeasuredRun:
    return MeasuredRun(name, "curve", {"model": "m", "stage": 0}, SCENARIO, parts)


def test_pairs_follow_parts():
    measured = run(Part({"mean_ttft_ms": 5.0}, labels={"stage": 1}), Part({"mean_tpot_ms": 4.0}, apart="odd"))
    predicted = ({"mean_ttft_ms": 6.0, "mean_tpot_ms": 1.0}, {"mean_tpot_ms": 2.0})
    first, second = pairs_of([Prediction(measured, predicted, "hash", 0)])
    assert (first.metric, first.measured, first.predicted, first.labels["stage"]) == (
        "mean_ttft_ms",
        5.0,
        6.0,
        1,
    )
    assert (first.apart, first.profile_hash, first.name) == (None, "hash", "a")
    assert (second.metric, second.error, second.apart, second.labels["stage"]) == (
        "mean_tpot_ms",
        -0.5,
        "odd",
        0,
    )
    assert second.name == "a, part 2"
    assert [one.metric for one in pairs_of([Prediction(measured, predicted, "", 0)], ["mean_tpot_ms"])] == [
        "mean_tpot_ms"
    ]


def test_a_run_of_which_requests_are_refused_stands_apart():
    measured = run(Part({"mean_ttft_ms": 5.0}), Part({"mean_ttft_ms": 5.0}, apart="odd"))
    found = pairs_of([Prediction(measured, ({"mean_ttft_ms": 5.0}, {}), "", 3)])
    assert [one.apart for one in found] == [TWIN_REFUSED, "odd"]
    assert [one.error for one in found] == [0.0, None]


def test_runs_without_results_are_predicted_and_not_scored():
    found = pairs_of([Prediction(run(), ({"mean_ttft_ms": 5.0, "mean_tpot_ms": 1.0},), "", 0)])
    assert [(one.metric, one.predicted, one.measured, one.error) for one in found] == [
        ("mean_ttft_ms", 5.0, None, None),
        ("mean_tpot_ms", 1.0, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "statistic", "limit"),
    [
        ("mean_tpot_ms=0.05", "mape", 0.05),
        ("mean_tpot_ms=5%", "mape", 0.05),
        ("mean_tpot_ms:p90=12%", "p90", 0.12),
        ("mean_tpot_ms:worst=150%", "worst", 1.5),
        ("mean_tpot_ms:bias=0", "bias", 0.0),
    ],
)
def test_tolerances_are_read(text, statistic, limit):
    found = parse_tolerance(text)
    assert (found.metric, found.statistic) == ("mean_tpot_ms", statistic)
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mean_tpot_ms", "write METRIC=VALUE"),
        ("mean_tpot_ms:=5%", "write METRIC=VALUE"),
        ("tpot=5%", "no metric 'tpot'"),
        ("mean_tpot_ms:p95=5%", "no statistic 'p95'; one of mape, bias, p50"),
        ("mean_tpot_ms=five", "'five' is no number"),
        ("mean_tpot_ms=-0.1", "at least 0"),
        ("mean_tpot_ms=nan", "at least 0"),
        ("mean_tpot_ms=5", "5 would be 500%; write 5%, or 0.05"),
    ],
)
def test_tolerances_that_are_none(text, said):
    with pytest.raises(ConfigError, match="--tolerance") as caught:
        parse_tolerance(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mean_tpot_ms=10%", 0.075),
        ("mean_tpot_ms:bias=10%", 0.025),
        ("mean_tpot_ms:p50=10%", 0.075),
        ("mean_tpot_ms:worst=10%", 0.1),
    ],
)
def test_a_limit_is_kept_up_to_itself(text, value):
    some = [pair(100, 95), pair(10, 11), replace(pair(1, 9), apart="odd")]
    verdict = judge([parse_tolerance(text)], some)[0]
    assert verdict.value == pytest.approx(value)  # bias by its size; what stands apart is not asked
    exact = replace(verdict.tolerance, limit=verdict.value)
    below = replace(verdict.tolerance, limit=verdict.value * (1 - 1e-9))
    assert [one.met for one in judge([exact, below], some)] == [True, False]


def test_a_limit_on_nothing_is_not_met():
    verdict = judge([parse_tolerance("mean_ttft_ms=50%")], [replace(pair(1, 1), apart="odd"), pair(1, 1)])[0]
    assert verdict.value is None
    assert not verdict.met
