"""The fit of step prices, against known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.confirmation.cost import KNOTS, StepTable, fit_steps, free
from hwbackend.engine.step_records import StepRecord
from sim.errors import ConfigError
from tests.calibration.confirmation.known_prices import PRICES


def random_records(rng, count, group, prices=PRICES, noise=0.0):
    cost = prices.cost(group)
    records = []
    for _ in range(count):
        decoding = int(rng.integers(0, 7))
        contexts = tuple(rng.integers(1, 900, decoding).tolist())
        prompts = int(rng.integers(0 if decoding else 1, 3))
        chunks = tuple((90 + i, int(rng.integers(0, 600)), int(rng.integers(1, 500))) for i in range(prompts))
        price = cost.mixed_ns(decoding, sum(contexts), 0, [(new, before) for _, before, new in chunks])
        price = round(price * (1 + noise * float(rng.exponential())))
        records.append(
            StepRecord(
                0, price, chunks, tuple(range(decoding)), contexts, (), 0, 0, 0, read_tokens=sum(contexts)
            )
        )
    return records


def test_a_fit_finds_the_prices_that_made_the_steps():
    rng = np.random.default_rng(1)
    table = StepTable.of([(group, random_records(rng, 300, group)) for group in (0, 1)])
    fit = fit_steps(table, 2)
    assert fit.p90_error < 1e-3
    assert fit.hold_up == pytest.approx(1, abs=1e-3)
    assert fit.bases == pytest.approx(PRICES.bases, rel=0.02)
    for name, value in PRICES.seconds.items():
        assert fit.seconds[name] == pytest.approx(value, rel=0.05, abs=2e-8), name


def test_a_fit_takes_as_long_as_the_steps_together_whatever_held_them_up():
    rng = np.random.default_rng(2)
    table = StepTable.of([(group, random_records(rng, 400, group, noise=0.3)) for group in (0, 1)])
    fit = fit_steps(table, 2)
    assert fit.predict(table).sum() == pytest.approx(table.seconds.sum())
    assert fit.hold_up > 1


def test_waits_for_transfers_are_not_the_steps_own_time():
    record = StepRecord(0, 10_000_000, ((1, 0, 5),), (), (), (), 0, 0, 0, waited_ns=4_000_000)
    look = StepRecord(0, 0, (), (), (), (), 0, 0, 0)
    assert StepTable.of([(0, [record, look])]).seconds.tolist() == [6e-3]


def test_few_steps_are_no_calibration():
    with pytest.raises(ConfigError, match="budget"):
        fit_steps(StepTable.of([(0, random_records(np.random.default_rng(3), 20, 0))]), 1)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 5000), st.integers(1, 400), st.floats(0.2, 3))
def test_a_window_of_decodes_is_its_steps_bit_for_bit(decodes, context, steps, pace):
    cost = PRICES.cost(1, pace)
    window = cost.decode_window_ns(decodes, context, 0, 0, steps)
    single = [cost.decode_ns(decodes, context + decodes * j, 0) for j in range(steps)]
    assert window.tolist() == single
    assert cost.mixed_ns(decodes, context, 0, ()) == single[0]


@settings(deadline=None)
@given(st.integers(0, 8), st.integers(1, 600), st.integers(0, 600))
def test_parts_add_up_to_the_price(decodes, new, computed):
    cost = PRICES.cost(0)
    parts = cost.parts(decodes, decodes * 50, 0, [(new, computed)])
    assert parts.total_s * 1e9 == pytest.approx(
        cost.mixed_ns(decodes, decodes * 50, 0, [(new, computed)]), abs=1
    )


def test_more_than_was_calibrated_is_said():
    fit = replace(PRICES, ranges={"decodes": (0, 4), "tokens": (1, 100), "context_tokens": (0, 999)})
    cost = fit.cost(0)
    cost.mixed_ns(3, 500, 0, [(60, 0)])
    assert not cost.extrapolated
    cost.mixed_ns(3, 500, 0, [(300, 0)])
    assert list(cost.extrapolated) == ["tokens"]
    assert KNOTS[0] == 0
    assert free().decode_ns(1, 1, 0) == 1
