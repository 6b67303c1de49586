"""What a profile says of its own error: quantiles that cover as they claim, of whole curves, and where it shows."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.serving.left_out import COVERAGE, bounds, coverage, prediction_errors, ratios
from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.predict import Prediction, predict
from sim.cli import run_command
from sim.profile import PredictionError, Profile, load_profile
from sim.scenario.reading import load_scenario
from sim.simulation import build_load
from tests.calibration.serving.client_files import SCENARIO

VALUES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60)
ONE_REQUEST = {"workload": {"input_tokens": 100, "output_tokens": 4, "num_requests": 2, "request_rate": 1.0}}


def ranks(count):
    """Which order statistics the bounds of so many values are, the smallest first as 1."""
    low, high = bounds(range(1, count + 1))
    return int(low), int(high)


class TestBounds:
    @given(values=VALUES, seed=st.integers(0, 99))
    def test_order_does_not_matter(self, values, seed):
        assert bounds(np.random.default_rng(seed).permutation(values)) == bounds(values)

    @given(values=VALUES, factor=st.floats(0.01, 100))
    def test_they_scale_with_the_values(self, values, factor):
        low, high = bounds(values)
        assert bounds([factor * value for value in values]) == (factor * low, factor * high)

    @given(values=VALUES)
    def test_they_are_values_and_those_of_the_ranks(self, values):
        low, high = ranks(len(values))
        assert bounds(values) == (sorted(values)[low - 1], sorted(values)[high - 1])

    @pytest.mark.parametrize("count", [*range(1, 60), 99, 200, 399])
    def test_one_more_value_lies_within_as_often_as_claimed_and_hardly_more(self, count):
        """Of exchangeable values the next is as likely in each of the count + 1 gaps."""
        low, high = ranks(count)
        covered = Fraction(high - low, count + 1)
        if low > 1 or high < count:
            assert Fraction(9, 10) <= covered <= Fraction(9, 10) + Fraction(2, count + 1)
        else:
            assert covered == Fraction(count - 1, count + 1)  # the extremes: all that can be said

    @pytest.mark.parametrize("count", [1, 2, 5, 18])
    def test_with_few_they_are_the_extremes(self, count):
        assert ranks(count) == (1, count)

    @pytest.mark.parametrize("count", [20, 50, 200])
    def test_draws_of_a_lognormal_are_covered(self, count):
        """By simulation, within four standard errors of the closed form of its ranks."""
        rng, trials = np.random.default_rng(count), 4000
        draws = rng.lognormal(sigma=0.3, size=(trials, count + 1))
        inside = 0
        for *known, new in draws:
            low, high = bounds(known)
            inside += low <= new <= high
        low, high = ranks(count)
        expected = (high - low) / (count + 1)
        assert expected >= COVERAGE
        assert inside / trials == pytest.approx(expected, abs=4 * (expected * (1 - expected) / trials) ** 0.5)


class TestCoverage:
    @pytest.mark.parametrize("rows", [1, 4])
    def test_of_independent_curves(self, rows):
        """Each is judged by the others: rows of a curve that are alike do not vouch for each other."""
        rng = np.random.default_rng(rows)
        shares = []
        for _ in range(30):
            curves = rng.lognormal(sigma=0.2, size=60)
            found = [(f"curve {i}", value) for i, value in enumerate(curves) for _ in range(rows)]
            shares.append(coverage(found)[0])
        assert np.mean(shares) == pytest.approx(0.9, abs=0.03)

    def test_by_hand(self):
        found = [("a", 1.0), ("a", 1.1), ("b", 0.9), ("b", 1.05), ("c", 2.0)]
        # a lies within [0.9, 2.0]; of b 0.9 is below [1.0, 2.0]; c is above [0.9, 1.1]
        inside, width = coverage(found)
        assert inside == 3 / 5
        assert width == pytest.approx(np.median([0.55, 0.55, 0.5, 0.5, 0.1]))

    def test_a_curve_of_its_own_is_not_covered_by_its_own_rows(self):
        found = [("odd", 5.0)] * 50 + [(f"curve {i}", 1.0 + i / 1000) for i in range(10)]
        assert coverage(found)[0] <= 10 / 60


def said(curve, measured, predicted, model="llama-3.1-8b", apart=None):
    """A prediction of one run on a curve."""
    scenario = load_scenario(SCENARIO | ONE_REQUEST)
    run = MeasuredRun(curve, curve, {"model": model}, scenario, (Part(measured, apart=apart),))
    return Prediction(run, (predicted,), "hash", 0)


class TestPredictionErrors:
    def test_ratios_are_measured_over_predicted_by_metric_and_kind_of_model(self):
        predictions = [
            said(
                "a",
                {"mean_tpot_ms": 12.0, "mean_ttft_ms": 30.0},
                {"mean_tpot_ms": 10.0, "mean_ttft_ms": 40.0},
            ),
            said("b", {"mean_tpot_ms": 9.0}, {"mean_tpot_ms": 10.0, "p99_ttft_ms": 1.0}, "gpt-oss-120b"),
            said("c", {"mean_tpot_ms": 99.0}, {"mean_tpot_ms": 1.0}, apart="for a reason"),
            said("d", {"mean_tpot_ms": 99.0}, {}),
        ]
        assert ratios(predictions) == {
            ("mean_tpot_ms", "dense"): [("a", 1.2)],
            ("mean_ttft_ms", "dense"): [("a", 0.75)],
            ("mean_tpot_ms", "moe"): [("b", 0.9)],
        }

    def test_of_metrics_on_too_few_curves_nothing_is_said(self):
        tpot = [said(curve, {"mean_tpot_ms": 11.0}, {"mean_tpot_ms": 10.0}) for curve in "aaabcd"]
        ttft = [said(curve, {"mean_ttft_ms": 11.0}, {"mean_ttft_ms": 10.0}) for curve in "aaaaaabc"]
        (error,) = prediction_errors(tpot + ttft)
        assert (error.metric, error.kind, error.rows, error.curves) == ("mean_tpot_ms", "dense", 6, 4)

    @given(st.lists(st.floats(0.5, 2), min_size=4, max_size=30))
    @settings(deadline=None)
    def test_errors_by_their_definitions(self, values):
        predictions = [
            said(f"curve {i}", {"mean_e2el_ms": 100.0 * value}, {"mean_e2el_ms": 100.0})
            for i, value in enumerate(values)
        ]
        (error,) = prediction_errors(predictions)
        off = sorted(abs(100.0 / (100.0 * value) - 1) for value in values)  # |predicted / measured - 1|
        assert error.median == pytest.approx(np.median(off), abs=1e-12)
        assert error.p90 == pytest.approx(np.quantile(off, 0.9), abs=1e-12)
        assert (error.low, error.high) == pytest.approx(bounds(values))
        assert error.interval(50.0) == (50.0 * error.low, 50.0 * error.high)
        most = sum(error.low * (1 - 1e-9) <= value <= error.high * (1 + 1e-9) for value in values)
        assert most >= COVERAGE * len(values) - 1

    def test_a_perfect_twin_has_no_error(self):
        predictions = [said(curve, {"mean_tpot_ms": 10.0}, {"mean_tpot_ms": 10.0}) for curve in "abcd"]
        (error,) = prediction_errors(predictions)
        assert (error.median, error.p90, error.low, error.high) == (0.0, 0.0, 1.0, 1.0)


def error(metric, kind, low, high):
    numbers = {"rows": 30, "curves": 9, "median": 0.05, "p90": 0.1}
    return PredictionError(metric=metric, kind=kind, low=low, high=high, **numbers)


ERRORS = (
    error("mean_tpot_ms", "dense", 0.9, 1.25),
    error("mean_ttft_ms", "dense", 0.5, 3.0),
    error("mean_tpot_ms", "moe", 0.1, 9.0),
    error("p99_itl_ms", "moe", 0.1, 9.0),
)


@pytest.fixture(scope="module")
def profile():
    return load_profile("h100_sxm").with_errors(ERRORS)


@pytest.fixture
def scenario(tmp_path, profile):
    def write(name="mine.json", one=profile):
        (tmp_path / name).write_text(one.to_json())
        path = tmp_path / "scenario.yaml"
        path.write_text(yaml.safe_dump(SCENARIO | ONE_REQUEST | {"hardware": {"profile": name}}))
        return path

    return write


class TestWhereItIsShown:
    def test_a_profile_keeps_its_errors_and_another_hash(self, profile):
        assert Profile.model_validate_json(profile.to_json()).errors == ERRORS
        assert profile.content_hash != profile.with_errors(()).content_hash
        assert profile.errors_for(moe=False) == ERRORS[:2]
        assert profile.errors_for(moe=True) == ERRORS[2:]

    def test_a_prediction_has_intervals_where_errors_are_known(self, profile):
        scenario = load_scenario(SCENARIO | ONE_REQUEST)
        run = MeasuredRun("one", "one", {"model": "llama-3.1-8b"}, scenario, (), build_load(scenario))
        one = predict(run, profile)
        assert one.interval("mean_tpot_ms", 10.0) == (9.0, 12.5)
        assert one.interval("p99_itl_ms", 10.0) is None
        assert predict(run, profile.with_errors(())).interval("mean_tpot_ms", 10.0) is None

    def test_a_run_says_its_intervals(self, scenario, capsys):
        assert run_command(["run", str(scenario()), "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        tpot, ttft = summary["mean_tpot_ms"], summary["mean_ttft_ms"]
        assert summary["sim"]["intervals"] == {
            "mean_ttft_ms": [0.5 * ttft, 3.0 * ttft],
            "mean_tpot_ms": [0.9 * tpot, 1.25 * tpot],
        }

    def test_the_text_says_those_of_the_means(self, scenario, capsys):
        path = scenario()
        assert run_command(["run", str(path), "--json"]) == 0
        intervals = json.loads(capsys.readouterr().out)["sim"]["intervals"]
        assert run_command(["run", str(path)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        ttft, tpot = (
            "{:.1f} to {:.1f} ms".format(*intervals[name]) for name in ("mean_ttft_ms", "mean_tpot_ms")
        )
        assert f"measured, 9 times in 10: mean TTFT {ttft}, mean TPOT {tpot}" in text

    def test_a_profile_that_knows_nothing_of_its_error_says_nothing(self, scenario, profile, capsys):
        path = scenario(one=profile.with_errors(ERRORS[2:]))  # of other models than this one
        assert run_command(["run", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["sim"]["intervals"] == {}
        assert run_command(["run", str(path)]) == 0
        assert "9 times in 10" not in capsys.readouterr().out

    def test_a_single_token_has_no_interval_of_its_pace(self, scenario, capsys):
        arguments = ["--set", "workload.output_tokens=1", "--json"]
        assert run_command(["run", str(scenario()), *arguments]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert list(summary["sim"]["intervals"]) == ["mean_ttft_ms"]
