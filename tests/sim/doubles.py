"""Cost models for tests of the engine loop: closed forms, no profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost import StepParts


@dataclass(frozen=True)
class AffineCost:
    """One base, and so much per sequence, per token of context (and window), per token of prefill.

    Whole nanoseconds throughout, so that every timestamp can be worked out by hand.
    """

    base_ns: int = 1_000_000
    per_seq_ns: int = 0
    per_context_ns: int = 0
    per_window_ns: int = 0
    per_prefill_token_ns: int = 0
    per_prefill_context_ns: int = 0
    sliding_window: int | None = None

    def decode_ns(self, num_seqs: int, context_tokens: int, window_context_tokens: int) -> int:
        return self.mixed_ns(num_seqs, context_tokens, window_context_tokens, ())

    def decode_window_ns(
        self, num_seqs: int, context_tokens: int, window_context_tokens: int, growing: int, steps: int
    ) -> NDArray[np.int64]:
        first = self.decode_ns(num_seqs, context_tokens, window_context_tokens)
        slope = self.per_context_ns * num_seqs + self.per_window_ns * growing
        return first + slope * np.arange(steps, dtype=np.int64)

    def mixed_ns(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        price = self.base_ns + self.per_seq_ns * num_seqs
        price += self.per_context_ns * context_tokens + self.per_window_ns * window_context_tokens
        for new_tokens, computed in chunks:
            price += self.per_prefill_token_ns * new_tokens + self.per_prefill_context_ns * computed
        return max(1, price)

    def parts(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> StepParts:
        seconds = self.mixed_ns(num_seqs, context_tokens, window_context_tokens, chunks) / 1e9
        return StepParts(
            overhead_s=0.0, compute_s=seconds, hbm_bytes=0.0, link_bytes=0.0, seconds={"step": seconds}
        )


def constant_cost(step_ns: int) -> AffineCost:
    """Every step takes `step_ns`, whatever it does."""
    return AffineCost(base_ns=step_ns)
