"""Whether a preempted sequence leaves its KV in host memory, or computes it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute

PreemptPolicy = Literal["recompute", "swap", "cheaper"]


@dataclass(frozen=True, slots=True)
class Swapping:
    """`cheaper` compares the way out and back with computing all tokens again, each alone on its links or GPU."""

    policy: PreemptPolicy
    rates: Rates
    recompute: Recompute
    block_size: int
    block_bytes: int

    def pays(self, tokens: int, blocks: int, unknown: int) -> bool:
        """Whether to swap out a sequence of `tokens` tokens in `blocks` full blocks, `unknown` of them nowhere else."""
        if self.policy != "cheaper" or not blocks:
            return self.policy == "swap" and blocks > 0
        out = self.rates.offload_ns(unknown * self.block_bytes)
        back = self.rates.load_ns(blocks * self.block_bytes)
        rest = self.recompute.prompt_ns(tokens + 1, blocks * self.block_size)
        return out + back + rest < self.recompute.prompt_ns(tokens + 1, 0)
