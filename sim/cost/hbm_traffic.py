"""What the steps of a model move over HBM, in phases: what a flow beside them can slow.

    linear layers      weights, hidden behind their arithmetic as the roofline says (Williams, Waterman and Patterson,
                       CACM 52(4), 2009), at the vendor's peak: bound by memory up to about 220 tokens on an H200
    experts            those that the tokens meet, likewise
    head and decodes   LM head and the KV of decoding sequences: nothing hides them
    prompts            KV of prefill chunks, hidden behind their attention

Each phase is a whole kind of kernel, so all but its arithmetic is taken to wait for memory. Activations are left
out: they are written and read while they are in L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.step_cost import Phase, Traffic
from sim.cost.terms import StepTerms
from sim.model import WEIGHT_BYTES

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Layers:
    """What depends on a step's tokens alone."""

    phases: tuple[Phase, ...]
    hbm_bytes: float


class HbmTraffic:
    """Traffic of one model on one of its GPUs."""

    def __init__(self, terms: StepTerms) -> None:
        model = terms.model
        self._terms = terms
        self._head_bytes = model.vocab_size * model.hidden_size * terms.value_bytes / terms.tp
        self._shapes = terms.gemm_shapes()
        self._context_bytes, self._window_bytes = terms.kv_context_bytes
        self._layers: dict[int, _Layers] = {}

    def decodes(
        self, tokens: int, num_seqs: int, contexts: tuple[int, int], growing: int, steps: int, slack_s: Float
    ) -> Traffic:
        """Successive steps of decodes alone; `tokens` counts padding, `contexts` are those of the first step."""
        step = np.arange(steps, dtype=np.float64)
        kv = self._kv(step * num_seqs + contexts[0], step * growing + contexts[1])
        return self._traffic(tokens, np.asarray(self._head_bytes + kv), (), slack_s)

    def mixed(
        self,
        tokens: int,
        contexts: tuple[int, int],
        chunks: Sequence[tuple[int, int]],
        attention_s: float,
        slack_s: float,
    ) -> Traffic:
        """One step with prefill `chunks`, whose attention takes `attention_s`."""
        border = self._terms.kv_border
        read = sum(new + computed for new, computed in chunks)
        reach = sum(new + min(computed, border) for new, computed in chunks)
        prompts = float(self._kv(read, reach))
        decodes = np.array([self._head_bytes + self._kv(*contexts)])
        return self._traffic(tokens, decodes, ((attention_s, prompts),), slack_s)

    def _kv(self, context_tokens: Float | int, window_context_tokens: Float | int) -> Float | float:
        return self._context_bytes * context_tokens + self._window_bytes * window_context_tokens

    def _traffic(
        self, tokens: int, decodes: Float, prompts: tuple[tuple[float, float], ...], slack_s: Float | float
    ) -> Traffic:
        layers = self._layers.get(tokens) or self._layers_of(tokens)
        moved = decodes + (layers.hbm_bytes + sum(size for _, size in prompts))
        return Traffic(
            phases=(*layers.phases, (0.0, decodes), *prompts),
            hbm_bytes=np.rint(moved).astype(np.int64),
            slack_s=slack_s,
        )

    def _layers_of(self, tokens: int) -> _Layers:
        terms, model = self._terms, self._terms.model
        seconds = sum(2.0 * tokens * n * k * times / self._peak(dtype) for dtype, n, k, times in self._shapes)
        size = sum(n * k * times * WEIGHT_BYTES[dtype] for dtype, n, k, times in self._shapes)
        phases: list[Phase] = [(seconds, size)]
        if model.moe is not None:
            moe = model.moe
            met = moe.num_experts * (1 - (1 - moe.top_k / moe.num_experts) ** tokens)
            one = 3.0 * model.hidden_size * moe.expert_intermediate_size / terms.tp
            dtype = "mxfp4" if "w4a16_mxfp4" in terms.expert_kernels else terms.expert_kernels[0]
            experts = model.num_moe_layers * met * one * WEIGHT_BYTES[dtype]
            flops = 2.0 * tokens * moe.top_k * one * model.num_moe_layers
            phases.append((flops / self._peak(dtype), experts))
            size += experts
        layers = self._layers[tokens] = _Layers(tuple(phases), size)
        return layers

    def _peak(self, dtype: str) -> float:
        """Arithmetic [FLOP/s]; that of the widest type, which is the first, where the device has no such units."""
        peaks = self._terms.profile.device.flops_per_s
        return peaks.get(dtype.removesuffix("_block"), next(iter(peaks.values())))
