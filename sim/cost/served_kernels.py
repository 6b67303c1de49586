"""Kernels as an engine runs them: a profile's curves with its factors, where it has any (`sim/served.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.profile import Profile
from sim.served import LARGE_MESSAGE, MANY_TOKENS, SMALL_MESSAGE, Served

Float = NDArray[np.float64]

_AS_TIMED: Final = Served(source="kernels as they were timed")
_LEAST: Final = 0.2  # of a product's time is left whatever its fixed part becomes


@dataclass(frozen=True, slots=True)
class ServedKernels:
    """Prices of single kernels [s]; without factors those of the curves, bit for bit."""

    profile: Profile

    @property
    def factors(self) -> Served:
        return self.profile.served or _AS_TIMED

    def gemm_s(self, dtype: str, m: Float, n: int, k: int) -> Float:
        seconds = self.profile.gemm_s(dtype, m, n, k)
        quantised = self.profile.served is not None and dtype not in ("bfloat16", "float32")
        less = (1.0 - self.factors.gemm_fixed) * self.profile.gemm[dtype].launch_s if quantised else 0.0
        return np.maximum(seconds - less, _LEAST * seconds) if less else seconds

    def clocked_down(
        self, shapes: Sequence[tuple[str, int, int, int]], tokens: Float, layers_s: Float
    ) -> Float:
        """Factor on the products (dtype, n, k, how many) of layers that take so long in all."""
        more = self.factors.compute - 1.0
        if not more:
            return np.ones_like(tokens)
        gemm = self.profile.gemm
        busy = sum(times * gemm[dtype].arithmetic_s(tokens, n, k) for dtype, n, k, times in shapes)
        return np.asarray(1.0 + more * np.minimum(busy / layers_s, 1.0))

    def decode_attention_s(
        self, layout: tuple[str, int, int, int], window: int, num_seqs: int, context_tokens: Float
    ) -> Float:
        """One layer of the layout (KV dtype, heads, KV heads, head size), its KV read from HBM."""
        seconds = self.profile.decode_attention_s(*layout, window, num_seqs, context_tokens, from_hbm=True)
        if self.profile.served is None:
            return seconds
        dtype, _, kv_heads, head_dim = layout
        curve = self.profile.decode_attention[dtype]
        streamed = curve.streamed_s(kv_heads, head_dim, window, num_seqs, context_tokens)
        return seconds - (1.0 - self.factors.decode_fixed) * np.maximum(seconds - streamed, 0.0)

    def experts(self, checkpoint: str, tokens_per_expert: Float) -> Float:
        """Factor on experts of a kind of checkpoint; what slows one kind down need not slow another one."""
        factor = self.factors.experts.get(checkpoint)
        if factor is None:
            return np.ones_like(tokens_per_expert)
        return _between(factor.few, factor.many, tokens_per_expert, 1.0, MANY_TOKENS)

    def all_reduce_s(self, gpus: int, message_bytes: ArrayLike) -> Float:
        message = np.asarray(message_bytes, dtype=np.float64)
        small, large = self.factors.all_reduce, self.factors.all_reduce_large
        factor = _between(small, large, message, SMALL_MESSAGE, LARGE_MESSAGE)
        return self.profile.all_reduce_s(gpus, message) * factor


def _between(first: float, last: float, at: Float, low: float, high: float) -> Float:
    """`first` up to `low`, `last` from `high` on, by the logarithm of `at` in between."""
    share = np.clip(np.log(np.maximum(at, low) / low) / np.log(high / low), 0.0, 1.0)
    return first + (last - first) * share
