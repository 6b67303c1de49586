"""Attention of prefill chunks, compiled to a grid over (new tokens, tokens computed before)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from sim.cost.segments import ladder
from sim.cost.terms import StepTerms

_KNOTS_PER_OCTAVE = 8


class ChunkGrid:
    """Nanoseconds that one chunk adds to the attention launches of a step, over all layers.

    Bilinear between the knots: the cost of q new tokens on c computed ones is near q c + q^2 / 2, which a
    grid of 8 knots per octave holds within 0.1%. A sliding window puts a kink at c = window, which is a
    knot.
    """

    def __init__(self, terms: StepTerms, max_tokens: int) -> None:
        window = terms.model.sliding_window or 0
        news = ladder(1, max_tokens, _KNOTS_PER_OCTAVE)
        contexts = np.unique(
            np.concatenate([[0.0, float(window)], ladder(1, terms.model.max_position_embeddings)])
        )
        cost = 1e9 * terms.prefill_attention(news[:, None], contexts[None, :])
        slope = np.diff(cost, axis=1) / np.diff(contexts)
        offset = cost[:, :-1] - slope * contexts[:-1]
        self._breaks: list[float] = contexts[1:-1].tolist()
        self._a: list[list[float]] = offset.tolist()
        self._b: list[list[float]] = slope.tolist()
        tokens = np.arange(max_tokens + 1)
        row = np.clip(np.searchsorted(news, tokens, side="right") - 1, 0, max(len(news) - 2, 0))
        self._row: list[int] = row.tolist()
        upper = np.minimum(row + 1, len(news) - 1)
        span = np.maximum(news[upper] - news[row], 1.0)
        self._share: list[float] = ((tokens - news[row]) / span).tolist()

    def at(self, new_tokens: int, context_tokens: int) -> float:
        row, share, j = (
            self._row[new_tokens],
            self._share[new_tokens],
            bisect_right(self._breaks, context_tokens),
        )
        low = self._a[row][j] + self._b[row][j] * context_tokens
        if share == 0.0:
            return low
        return low + share * (self._a[row + 1][j] + self._b[row + 1][j] * context_tokens - low)
