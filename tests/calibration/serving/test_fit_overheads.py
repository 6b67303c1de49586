"""Terms fitted to simulated servers: what was put in is found, held by what is expected, and judged on other curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.serving.fit_overheads import ASKED, TERMS, Fit, Term, fit_overheads, left_out, with_terms
from calibration.serving.measured_run import Part
from sim.profile import Profile
from sim.served import Served
from tests.calibration.serving.known_runs import BARE, measured, offered, remeasured
from workloads.errors import InputError

TRUE = {
    "host.per_layer_s": 20e-6,
    "host.per_seq_s": 30e-6,
    "host.per_request_s": 5e-3,
    "served.compute": 1.2,
}
LOOSE = [replace(TERMS[path], spread=4 * TERMS[path].spread) for path in TRUE]
"""Terms of which little is known before, so that few runs say what they are."""
RUNS = [
    *(offered("llama-3.1-8b", tokens, seats) for tokens in (100, 4000) for seats in (1, 8, 32)),
    *(offered("llama-3.1-70b", tokens, seats) for tokens in (100, 2000) for seats in (1, 8)),
]
FEW = [RUNS[0], RUNS[2], RUNS[3]]


def changed(profile, **values):
    """A profile with the terms at these values; `host__base_s` for `host.base_s`."""
    paths = {name.replace("__", "."): value for name, value in values.items()}
    return with_terms(profile, [TERMS[path] for path in paths], np.array(list(paths.values())))


def found(fit):
    return dict(zip([term.path for term in fit.terms], fit.values.tolist(), strict=True))


@pytest.fixture(scope="module")
def known():
    """A server with terms of its own."""
    return with_terms(BARE, LOOSE, np.array(list(TRUE.values())), "known")


@pytest.fixture(scope="module")
def runs(known):
    return measured(RUNS, known)


@pytest.fixture(scope="module")
def fit(runs):
    return fit_overheads(BARE, runs, LOOSE, source="ten runs")


class TestFit:
    def test_known_terms_are_found_again(self, fit):
        assert found(fit) == pytest.approx(TRUE, rel=0.05)
        assert np.abs(fit.residuals).max() < 0.1  # half a percent of TPOT
        assert len(fit.rows) == len(fit.residuals) == len(fit.jacobian) == len(RUNS) * len(ASKED)

    def test_an_outlier_moves_little(self, fit, runs):
        odd = [remeasured(runs[0], mean_tpot_ms=3.0), *runs[1:]]
        other = fit_overheads(BARE, odd, LOOSE, source="with an outlier")
        assert found(other) == pytest.approx(TRUE, rel=0.25)
        assert np.abs(other.residuals).max() > 15  # it is not explained

    def test_the_profile_says_whence_and_is_another(self, fit):
        assert fit.profile.host.source == fit.profile.served.source == "ten runs"
        assert fit.profile.host.per_seq_s == found(fit)["host.per_seq_s"]
        assert fit.profile.served.compute == found(fit)["served.compute"]
        without = fit.without(fit.runs[0].curve)
        hashes = {one.content_hash for one in (BARE, fit.profile, without)}
        assert len(hashes) == 3
        assert BARE.host.per_seq_s == 0.0

    def test_each_curve_is_predicted_by_the_others(self, fit):
        said = list(left_out(fit))
        assert [one.run for one in said] == list(fit.runs)
        for one in said:
            assert one.profile_hash == fit.without(one.run.curve).content_hash != fit.profile.content_hash
            assert one.parts[0] == pytest.approx({**one.parts[0], **one.run.parts[0].measured}, rel=0.08)


class TestFewRuns:
    def test_a_term_without_evidence_goes_to_what_is_expected(self):
        start = BARE.with_served(Served(routing_s=5e-6, all_reduce=1.5, source="a guess"))
        terms = ["host.per_layer_s", "served.routing_s", Term("served.all_reduce", 1.1, 0.4, 0.3, 4.0)]
        one = fit_overheads(
            start, measured(FEW[:2], changed(start, host__per_layer_s=1e-5)), terms, source="two"
        )
        assert found(one)["served.routing_s"] == pytest.approx(0.0, abs=1e-12)
        assert found(one)["served.all_reduce"] == pytest.approx(1.1)
        assert not one.jacobian[:, 1:].any()

    def test_the_more_is_expected_the_less_is_learnt(self):
        path, start = "host.per_layer_s", changed(BARE, host__per_layer_s=5e-6)
        runs = measured(FEW[:2], changed(BARE, host__per_layer_s=20e-6), ("mean_tpot_ms",))
        sure, open_ = (
            fit_overheads(start, runs, [Term(path, 5e-6, spread)], source="two").values[0]
            for spread in (2e-7, 4e-5)
        )
        assert 5e-6 < sure < 5.2e-6
        assert open_ == pytest.approx(20e-6, rel=0.05)

    def test_a_fit_starts_where_the_profile_is(self):
        """What explains the runs and is expected stays, to the last bit."""
        start = changed(BARE, host__per_seq_s=40e-6)
        one = fit_overheads(
            start, measured(FEW, start), [Term("host.per_seq_s", 40e-6, 1e-5)], source="three"
        )
        assert one.values.tolist() == [40e-6]
        assert not one.residuals.any()
        said = []
        fit_overheads(
            start, list(one.runs), [Term("host.per_seq_s", 30e-6, 1e-5)], source="three", log=said.append
        )
        assert said[0] == "round 0: |residual| median 0.00, host.per_seq_s 4e-05"

    def test_values_stay_in_their_bounds(self):
        slow, fast = measured(FEW, changed(BARE, host__per_seq_s=1e-3)), measured(FEW, BARE)
        fast = [remeasured(run, **dict.fromkeys(ASKED, 0.5)) for run in fast]
        terms = [TERMS["host.per_layer_s"], Term("served.compute", 1.0, 0.2, 0.9, 1.1)]
        up, down = (fit_overheads(BARE, one, terms, source="three") for one in (slow, fast))
        assert found(up)["served.compute"] == 1.1
        assert found(down) == {"host.per_layer_s": 0.0, "served.compute": 0.9}
        for one in (up, down):
            for term, value in zip(terms, one.values, strict=True):
                assert term.low <= value <= term.high

    def test_what_stands_apart_enters_no_fit(self):
        runs = measured(FEW, changed(BARE, host__per_seq_s=40e-6))
        odd = remeasured(runs[0], apart="for a reason", mean_tpot_ms=9.0)
        alone, beside = (
            fit_overheads(BARE, some, ["host.per_seq_s"], source="s") for some in (runs[1:], [*runs[1:], odd])
        )
        assert alone.values.tolist() == beside.values.tolist()
        assert {run for run, _, _ in beside.rows} == {0, 1}


def test_nothing_to_fit_is_an_error():
    with pytest.raises(InputError, match=r"nothing to fit: no run has any of mean_tpot_ms"):
        fit_overheads(BARE, [], ["host.base_s"], source="none")
    run = replace(FEW[0], parts=(Part({"request_throughput": 3.0}),))
    with pytest.raises(InputError, match="nothing to fit"):
        fit_overheads(BARE, [run], ["host.base_s"], source="none")
    apart = replace(FEW[0], parts=(Part({"mean_tpot_ms": 3.0}, apart="for a reason"),))
    with pytest.raises(InputError, match="nothing to fit"):
        fit_overheads(BARE, [apart], ["host.base_s"], source="none")


def linear(values, offsets, seed=0):
    """A fit whose residuals are linear in its terms: zero at (3 us, 6 us), but for what each row is off by.

    Rows of four runs in turn, on curves a, b and c (twice).
    """
    terms = (Term("host.per_layer_s", 4e-6, 1e-6, -np.inf), Term("host.per_seq_s", 5e-6, 2e-6, -np.inf))
    jacobian = np.random.default_rng(seed).normal(size=(len(offsets), 2))
    away = (np.array(values) - np.array([3e-6, 6e-6])) / np.array([1e-6, 2e-6])
    runs = [replace(FEW[0], curve=curve) for curve in "abcc"]
    rows = tuple((i % 4, 0, "mean_tpot_ms") for i in range(len(offsets)))
    return Fit(
        with_terms(BARE, terms, np.array(values)),
        terms,
        np.array(values),
        tuple(runs),
        rows,
        jacobian,
        jacobian @ away + np.array(offsets),
    )


def both(profile):
    return np.array([profile.host.per_layer_s, profile.host.per_seq_s])


OFFSETS = st.lists(st.floats(-0.5, 0.5), min_size=8, max_size=16)


class TestWithout:
    def test_measurements_of_the_curve_do_not_enter(self, fit):
        """Whatever was measured on it: the same profile to the last bit."""
        rng = np.random.default_rng(1)
        for curve in dict.fromkeys(run.curve for run in fit.runs):
            own = np.array([fit.runs[run].curve == curve for run, _, _ in fit.rows])
            noise = np.where(own, rng.normal(size=own.size), 0.0)
            other = replace(fit, residuals=fit.residuals + noise)
            assert other.without(curve).content_hash == fit.without(curve).content_hash
            elsewhere = replace(fit, residuals=fit.residuals + np.where(own, 0.0, 1.0))
            assert elsewhere.without(curve).content_hash != fit.without(curve).content_hash

    def test_hardly_even_through_the_fit_to_all(self, fit, runs):
        """The fit to all moved with them; one step without the curve brings it back."""
        curve = runs[-1].curve
        odd = [remeasured(run, **dict.fromkeys(ASKED, 1.15)) if run.curve == curve else run for run in runs]
        moved = fit_overheads(BARE, odd, LOOSE, source="one curve off")
        both = [[with_.host.per_layer_s, with_.served.compute] for with_ in (moved.profile, fit.profile)]
        back = [
            [with_.host.per_layer_s, with_.served.compute]
            for with_ in (moved.without(curve), fit.without(curve))
        ]
        away, left = (np.abs(np.array(one[0]) / np.array(one[1]) - 1).max() for one in (both, back))
        assert away > 0.05
        assert left < away / 3

    @given(offsets=OFFSETS, start=st.tuples(st.floats(2.8e-6, 3.2e-6), st.floats(5.6e-6, 6.4e-6)))
    @settings(deadline=None, max_examples=20)
    def test_of_a_linear_law_it_does_not_matter_where_the_fit_to_all_ended(self, offsets, start):
        some, other = linear((3e-6, 6e-6), offsets), linear(start, offsets)
        for curve in "abc":
            np.testing.assert_allclose(both(some.without(curve)), both(other.without(curve)), rtol=1e-6)

    @given(offsets=OFFSETS)
    @settings(deadline=None, max_examples=20)
    def test_of_a_linear_law_it_is_the_least_squares_solution(self, offsets):
        """Rows of the other curves, and what is expected: by the normal equations."""
        fit = linear((3e-6, 6e-6), offsets)
        spread, expected = np.array([1e-6, 2e-6]), np.array([4e-6, 5e-6])
        for curve in "abc":
            kept = [fit.runs[run].curve != curve for run, _, _ in fit.rows]
            j, r = fit.jacobian[kept], fit.residuals[kept]
            normal = j.T @ j + np.eye(2)
            step = np.linalg.solve(normal, -j.T @ r + (expected - fit.values) / spread)
            np.testing.assert_allclose(both(fit.without(curve)), fit.values + spread * step, rtol=1e-6)

    @given(seed=st.integers(0, 1000))
    @settings(deadline=None, max_examples=10)
    def test_the_order_of_rows_does_not_matter(self, seed):
        rng = np.random.default_rng(seed)
        fit = linear((3e-6, 6e-6), rng.normal(scale=2, size=12).tolist())
        order = rng.permutation(12)
        shuffled = replace(
            fit,
            rows=tuple(fit.rows[i] for i in order),
            jacobian=fit.jacobian[order],
            residuals=fit.residuals[order],
        )
        np.testing.assert_allclose(both(fit.without("b")), both(shuffled.without("b")), rtol=1e-6)

    def test_a_residual_counts_by_its_sign_alone_once_it_is_large(self):
        """Huber: weight 2 / |r|, so that w r, what pulls, stays at 2."""
        offsets = np.zeros(12)
        moved = []
        for size in (20.0, 80.0):
            offsets[1] = size
            moved.append(np.abs(both(linear((3e-6, 6e-6), offsets).without("a")) - [3e-6, 6e-6]))
        assert (moved[1] < moved[0] * 1.2).all()

    def test_nothing_else_is_an_error(self):
        alone = replace(linear((3e-6, 6e-6), [0.1] * 8), runs=tuple(FEW[0] for _ in range(4)))
        with pytest.raises(InputError, match="nothing else was fitted"):
            alone.without(FEW[0].curve)


class TestTerms:
    @pytest.mark.parametrize("path", TERMS)
    def test_each_is_a_number_of_the_profile(self, path):
        """It is put where its path says, and nothing else changes."""
        term = TERMS[path]
        value = term.expected + 0.5 * term.spread
        profile = with_terms(BARE, [term], np.array([value]), "here")
        section, *rest = path.split(".")
        place = profile.model_dump()[section]
        for name in rest:
            place = place[name]
        assert place == value
        assert getattr(profile, section).source == "here"
        fields = set(Profile.model_fields) - {section}
        assert profile.model_dump(include=fields) == BARE.model_dump(include=fields)
        before = getattr(BARE, section) or Served(source="")
        kept = {"source", rest[0]}
        assert getattr(profile, section).model_dump(exclude=kept) == before.model_dump(exclude=kept)
        assert term.low <= term.expected <= term.high

    def test_a_hash_is_that_of_what_the_file_says(self):
        assert BARE.content_hash
        profile = changed(BARE, host__base_s=1e-3, served__compute=1.1)
        assert profile.content_hash == Profile.model_validate_json(profile.to_json()).content_hash
        assert profile.content_hash != BARE.content_hash

    def test_sections_that_no_term_is_of_stay(self):
        profile = changed(BARE, host__base_s=1e-3)
        assert profile.served is None
        assert profile.host.source == BARE.host.source
        assert profile.host.call_s == BARE.host.call_s
