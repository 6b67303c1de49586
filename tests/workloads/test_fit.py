"""Fits recover the parameters of what was drawn, and rank its family first."""

import numpy as np
import pytest

from workloads.config import parse_workload
from workloads.errors import InputError
from workloads.fit import GAP_FAMILIES, LENGTH_FAMILIES, fit_gaps, fit_lengths, note
from workloads.lengths import draw_lengths

N = 20_000


def whole(values):
    return np.maximum(np.rint(values), 1)


def best(fits, family):
    assert fits[0].family == family
    assert fits[0].ks == min(fit.ks for fit in fits)
    assert fits[0].p_value > 0.05
    assert fits[0].aic == min(fit.aic for fit in fits)
    return fits[0].parameters


@pytest.mark.parametrize(("mu", "sigma"), [(6.0, 0.8), (2.0, 1.0)])
def test_lognormal(rng, mu, sigma):
    families = [family for family in LENGTH_FAMILIES if family != "truncated_lognormal"]
    fits = fit_lengths(whole(rng.lognormal(mu, sigma, N)), families)
    assert best(fits, "lognormal") == pytest.approx({"mu": mu, "sigma": sigma}, rel=0.02)


def test_truncated_lognormal_in_the_words_of_a_scenario(rng):
    law = {"mean": 180.0, "sigma": 1.2, "low": 20, "high": 2000}
    section = {"input_tokens": {"lognormal": law}, "output_tokens": 1, "num_requests": 1, "request_rate": 1}
    spec = parse_workload(section).input_tokens
    found = best(fit_lengths(draw_lengths(spec, rng, N)), "truncated_lognormal")
    assert {name: found[name] for name in law} == pytest.approx(law, rel=0.03)


@pytest.mark.parametrize(("shape", "scale"), [(0.6, 800.0), (3.0, 40.0)])
def test_gamma_lengths(rng, shape, scale):
    fits = fit_lengths(whole(rng.gamma(shape, scale, N)))
    assert best(fits, "gamma") == pytest.approx({"shape": shape, "scale": scale}, rel=0.05)


@pytest.mark.parametrize("shape", [0.7, 2.5])
def test_weibull_lengths(rng, shape):
    fits = fit_lengths(whole(300 * rng.weibull(shape, N)))
    assert best(fits, "weibull") == pytest.approx({"shape": shape, "scale": 300}, rel=0.03)


def test_short_lengths_are_judged_as_whole_numbers(rng):
    """With a mean of 4 tokens a continuous fit is off by the rounding; the rounded law is not."""
    fits = fit_lengths(whole(rng.exponential(4, N)), ["exponential"])
    assert fits[0].parameters["scale"] == pytest.approx(4, rel=0.02)
    assert fits[0].p_value > 0.05


def test_gaps(rng):
    found = best(fit_gaps(rng.gamma(0.5, 2 / 8, N)), "gamma")
    assert found == pytest.approx({"shape": 0.5, "scale": 0.25}, rel=0.05)
    found = best(fit_gaps(0.2 * rng.weibull(0.6, N)), "weibull")
    assert found == pytest.approx({"shape": 0.6, "scale": 0.2}, rel=0.05)
    exponential = {fit.family: fit for fit in fit_gaps(rng.exponential(0.125, N))}["exponential"]
    assert exponential.parameters["scale"] == pytest.approx(0.125, rel=0.02)
    assert exponential.p_value > 0.05


def test_gaps_of_a_coarse_clock_do_not_break_the_likelihood(rng):
    gaps = np.diff(np.floor(np.cumsum(rng.exponential(0.3, 5000))))
    assert np.mean(gaps == 0) > 0.5
    fits = fit_gaps(gaps)
    assert {fit.family for fit in fits} == set(GAP_FAMILIES)
    assert all(np.isfinite([fit.ks, fit.aic]).all() for fit in fits)
    assert fits[0].ks > 0.1, "no continuous law fits a clock that ticks"


def test_what_cannot_be_fitted():
    with pytest.raises(InputError, match="fit: 3 values are too few; at least 20 are needed"):
        fit_lengths([1, 2, 3])
    with pytest.raises(InputError, match="fit: all 30 values are 7; there is no spread to fit"):
        fit_lengths([7] * 30)


def test_the_note_says_what_a_p_value_means_here():
    assert "at n = 19366 even a distance of 0.0098 is rejected" in note(19_366)
