"""How long tokens take to compute, alone, in chunks as large as a step may be."""

from __future__ import annotations

from dataclasses import dataclass

from sim.cost import StepCost


@dataclass(frozen=True, slots=True)
class Recompute:
    """Prices prompts by the cost model of the engine."""

    cost: StepCost
    max_num_batched_tokens: int

    def prompt_ns(self, tokens: int, computed: int) -> int:
        """Until all of `tokens` tokens are computed, of which the first `computed` are there."""
        total = 0
        while computed < tokens:
            chunk = min(tokens - computed, self.max_num_batched_tokens)
            total += self.cost.mixed_ns(0, 0, 0, [(chunk, computed)])
            computed += chunk
        return total
