"""Prices of steps that a fit has to find again."""

from __future__ import annotations

from calibration.confirmation.cost import NAMES, StepFit


def priced(**seconds):
    return StepFit({**dict.fromkeys(NAMES[1:], 0.0), **seconds}, (1e-3, 2e-3), 1.0, 0, 0.0, 0.0, {})


PRICES = priced(
    per_seq=1e-4,
    per_token_above_0=2e-5,
    per_token_above_64=3e-5,
    per_context=3e-7,
    per_chunk=4e-4,
    per_pair=5e-8,
)
