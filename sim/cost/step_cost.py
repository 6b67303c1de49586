"""The price of an engine step: what the engine loop asks of a cost model, and the breakdown it can report.

Contexts are counted one way everywhere: a decoding sequence attends to `num_computed_tokens + 1` tokens (its
KV so far and the token being computed), and `context_tokens` is the sum of that over the decoding sequences
of the step; `window_context_tokens` is the sum of `min(that, sliding_window)`, and is ignored where
`sliding_window` is None. A chunk `(new_tokens, computed_before)` computes `new_tokens` of one sequence on top
of `computed_before`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step taken apart. The terms in `seconds` sum to the price before it is rounded to nanoseconds."""

    overhead_s: float
    compute_s: float
    hbm_bytes: float
    link_bytes: float
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


Phase = tuple[NDArray[np.float64] | float, NDArray[np.float64] | float]
"""Seconds of arithmetic, and bytes on HBM that it hides; of every step, or one number for all of them."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What successive steps move over HBM, on each GPU, in phases that run one after the other.

    hbm_bytes   of each step, in whole bytes
    slack_s     how long the GPU of each waits for the host anyway
    """

    phases: tuple[Phase, ...]
    hbm_bytes: NDArray[np.int64]
    slack_s: NDArray[np.float64] | float = 0.0


class StepCost(Protocol):
    """What the engine loop asks. Prices are whole nanoseconds, at least 1."""

    @property
    def sliding_window(self) -> int | None:
        """Window [tokens] of the layers that have one; None where every layer attends to everything."""

    def decode_ns(self, num_seqs: int, context_tokens: int, window_context_tokens: int) -> int:
        """One step that decodes one token of each of `num_seqs` sequences."""

    def decode_window_ns(
        self, num_seqs: int, context_tokens: int, window_context_tokens: int, growing: int, steps: int
    ) -> NDArray[np.int64]:
        """Price `steps` successive decode steps of the same sequences.

        Step j has `context_tokens + num_seqs * j` and `window_context_tokens + growing * j`: `growing` of
        the sequences stay below the sliding window to the end of the call. Element j equals `decode_ns`
        there, bit for bit.
        """

    def mixed_ns(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        """One step that decodes `num_seqs` sequences (may be 0) beside prefill `chunks`."""

    def parts(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> StepParts:
        """Take the same step apart, for reports."""

    @property
    def hbm_bytes_per_s(self) -> float:
        """HBM bandwidth that kernels reach."""

    def traffic(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        *,
        chunks: Sequence[tuple[int, int]] = (),
        growing: int = 0,
        steps: int = 1,
    ) -> Traffic:
        """HBM traffic of `steps` successive steps as `decode_window_ns` has them; with chunks, of one step.

        What belongs to a step does not depend on how many are asked for, bit for bit.
        """


class ServiceCost(StepCost, Protocol):
    """A `StepCost` that also knows what it stands on, for the summary of a run."""

    @property
    def extrapolated(self) -> Mapping[str, str]:
        """Terms that were asked outside the range of their measurements, in words."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the prices assume where a user would expect something else, one line each."""
