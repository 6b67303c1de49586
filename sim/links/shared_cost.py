"""The price of steps on a GPU whose HBM other flows share: a cost model around a cost model.

Every price is that of the inner cost, stretched by the share of HBM that the engine's own standing flow has at the
step's start (`stretch.py`). The traffic of the last step or steps priced is kept for the account.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.cost import StepCost, Traffic
from sim.links.stretch import stretched_window_ns


class SharedCost:
    """What a replica asks in place of its `StepCost`.

    `share()` is the part of the HBM's bandwidth that steps have now, `quiet_ns()` how long it surely stays so (None:
    for good).
    """

    def __init__(
        self, cost: StepCost, share: Callable[[], float], quiet_ns: Callable[[], int | None]
    ) -> None:
        self._cost = cost
        self._share = share
        self._quiet_ns = quiet_ns
        self.hbm_bytes: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Of each of the steps priced last."""

    def decode_ns(self, num_seqs: int, context_tokens: int, window_context_tokens: int) -> int:
        alone = self._cost.decode_ns(num_seqs, context_tokens, window_context_tokens)
        return self._one(alone, self._cost.traffic(num_seqs, context_tokens, window_context_tokens))

    def mixed_ns(
        self,
        num_seqs: int,
        context_tokens: int,
        window_context_tokens: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        contexts = context_tokens, window_context_tokens
        alone = self._cost.mixed_ns(num_seqs, *contexts, chunks)
        return self._one(alone, self._cost.traffic(num_seqs, *contexts, chunks=chunks))

    def decode_window_ns(
        self, num_seqs: int, context_tokens: int, window_context_tokens: int, growing: int, steps: int
    ) -> NDArray[np.int64]:
        """As many of the `steps` as are sure to start before the share changes, and perhaps some more."""
        contexts = context_tokens, window_context_tokens
        quiet_ns = self._quiet_ns()
        if quiet_ns is not None:
            steps = min(steps, 1 + quiet_ns // self._cost.decode_ns(num_seqs, *contexts))
        alone = self._cost.decode_window_ns(num_seqs, *contexts, growing, steps)
        traffic = self._cost.traffic(num_seqs, *contexts, growing=growing, steps=steps)
        return self._stretched(alone, traffic)

    def _one(self, alone_ns: int, traffic: Traffic) -> int:
        return int(self._stretched(np.array([alone_ns], dtype=np.int64), traffic)[0])

    def _stretched(self, alone_ns: NDArray[np.int64], traffic: Traffic) -> NDArray[np.int64]:
        self.hbm_bytes = traffic.hbm_bytes
        reached = self._cost.hbm_bytes_per_s
        return stretched_window_ns(alone_ns, traffic.phases, self._share(), reached, traffic.slack_s)
