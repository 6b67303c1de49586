"""Doubles: cost models and a profile in closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.batching.decision import EngineLimits, EngineView, StepLimits
from sim.cost.step_cost import StepCost, StepParts, Traffic
from sim.model import ModelSpec
from sim.profile import HostOverhead
from workloads.errors import ConfigError


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
    # Traffic on HBM: as much per step and per token of context, hidden behind so much arithmetic.
    step_bytes: int = 0
    bytes_per_context: int = 0
    compute_s: float = 0.0
    slack_s: float = 0.0
    hbm_bytes_per_s: float = 1e9

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

    def traffic(
        self, num_seqs, context_tokens, window_context_tokens, *, chunks=(), growing=0, steps=1
    ) -> Traffic:
        context_tokens += sum(new + computed for new, computed in chunks)
        context = context_tokens + num_seqs * np.arange(steps, dtype=np.int64)
        moved = self.step_bytes + self.bytes_per_context * context
        return Traffic(((self.compute_s, moved.astype(np.float64)),), moved, self.slack_s)


@dataclass(frozen=True)
class EveryOther:
    """A batcher that admits in every other period only: a decision that changes with time alone."""

    period_ns: int
    order = None
    looks_every_step = False
    max_prompt_tokens = None

    def build(self, limits: EngineLimits, cost: StepCost) -> EveryOther:
        return self

    def plan(self, view: EngineView, now_ns: int) -> StepLimits:
        periods = now_ns // self.period_ns
        admissions = 1000 if periods % 2 else 0
        return StepLimits(1000, admissions=admissions, next_change_ns=(periods + 1) * self.period_ns)


def constant_cost(step_ns: int) -> AffineCost:
    """Every step takes `step_ns`, whatever it does."""
    return AffineCost(base_ns=step_ns)


@dataclass(frozen=True)
class ClosedFormProfile:
    """A profile whose curves can be worked out by hand; times in seconds.

    gemm m n k x 1e-15 + 1e-6; elementwise tokens x bytes x 1e-13 + 1e-7; attention as below; experts 1e-9 a
    token. `kinks` bends decode attention at those contexts, so that it compiles to several segments.
    """

    name: str = "closed-form"
    host: HostOverhead | None = None
    served: None = None
    kinks: tuple[int, ...] = ()
    largest_m: int = 10**9
    shared_attention: Mapping[str, Any] = field(default_factory=dict)
    device: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(compute_capability="8.0"))

    def with_host(self, host):
        return replace(self, host=host)

    def gemm_s(self, dtype, m, n, k):
        if dtype not in ("bfloat16", "fp8"):
            raise ConfigError(f"profile {self.name}: no gemm curve for {dtype}; it has bfloat16, fp8")
        return 1e-6 + np.asarray(m, dtype=float) * n * k * (1e-15 if dtype == "bfloat16" else 5e-16)

    def elementwise_s(self, tokens, bytes_per_token):
        return 1e-7 + np.asarray(tokens, dtype=float) * bytes_per_token * 1e-13

    def attention_launch_s(self, kv_dtype, heads, kv_heads, head_dim, window, phase="prefill"):
        return 2e-6

    def prefill_attention_s(self, kv_dtype, heads, kv_heads, head_dim, window, new_tokens, context_tokens):
        q, c = np.asarray(new_tokens, dtype=float), np.asarray(context_tokens, dtype=float)
        reach = np.minimum(c, window) if window else c
        return 2e-6 + heads * head_dim * (q * reach + q * (q + 1) / 2) * 1e-15

    def decode_attention_s(
        self, kv_dtype, heads, kv_heads, head_dim, window, num_seqs, context_tokens, *, from_hbm=False
    ):
        s = np.asarray(context_tokens, dtype=float) * (0.5 if kv_dtype == "fp8" else 1.0)
        bends = sum((np.maximum(s - kink, 0.0) for kink in self.kinks), start=np.zeros_like(s))
        return 2e-6 + kv_heads * head_dim * (s + bends) * 1e-12 + num_seqs * 1e-9

    def moe_s(self, dtype, tokens, hidden, inter, top_k, experts, tp, ep=1, distribution="power_law_1.2"):
        return 3e-6 + np.asarray(tokens, dtype=float) * 1e-9

    def all_reduce_s(self, gpus, message_bytes):
        return 5e-6 + np.asarray(message_bytes, dtype=float) * 1e-12

    def outside(self, term, **axes):
        worst = int(np.max(axes["m"])) if term == "gemm" else 0
        return f"gemm: m = {worst} outside 1 to {self.largest_m}" if worst > self.largest_m else None


TINY = ModelSpec(
    name="tiny",
    architecture="LlamaForCausalLM",
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=1000,
    max_position_embeddings=4096,
)
