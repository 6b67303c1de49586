"""From which context on it is faster to bring KV back than to compute it again.

The prompt is one token longer than the KV in question, since the last token is always computed. Reloading a short
context saves little: a step that reads all weights for one token takes hardly longer for a hundred. A transfer has
its latency, and the rest still has to be computed in a step. Beyond that, computing costs more per token than a fast
link, and ever more, since every token attends to all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute

_FINE = 64
_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Crossover:
    """Reload against recompute for blocks of `block_size` tokens and `block_bytes` on each GPU."""

    rates: Rates
    recompute: Recompute
    block_size: int
    block_bytes: int

    def recompute_ns(self, blocks: int) -> float:
        """Until a prompt is through of which so many full blocks are found nowhere."""
        return self.recompute.prompt_ns(blocks * self.block_size + 1, 0)

    def reload_ns(self, blocks: int, *, disk: bool = False) -> float:
        """The same where they are in host memory, or on disk."""
        num_bytes = blocks * self.block_bytes
        load = self.rates.load_ns(0, num_bytes) if disk else self.rates.load_ns(num_bytes)
        tokens = blocks * self.block_size
        return load + self.recompute.prompt_ns(tokens + 1, tokens)

    def pays(self, most_blocks: int, *, disk: bool = False) -> list[tuple[int, int]]:
        """Where reloading is faster: ranges of blocks, both ends included, to within a block of each border.

        Looked for between 1 and `most_blocks`, at every length up to 64 blocks and at lengths 5% apart beyond;
        between those it is taken to change once at most.
        """

        def faster(blocks: int) -> bool:
            return self.reload_ns(blocks, disk=disk) < self.recompute_ns(blocks)

        return _ranges(faster, _ladder(most_blocks))


def _ladder(most: int) -> list[int]:
    rungs = list(range(1, min(_FINE, most) + 1))
    while rungs[-1] < most:
        rungs.append(min(max(int(rungs[-1] * _RATIO), rungs[-1] + 1), most))
    return rungs


def _ranges(holds: Callable[[int], bool], rungs: Sequence[int]) -> list[tuple[int, int]]:
    """Where `holds` is true, by bisection between rungs where it changes."""
    ranges: list[tuple[int, int]] = []
    first = rungs[0] if holds(rungs[0]) else None
    for below, above in pairwise(rungs):
        if holds(above) == (first is not None):
            continue
        low, high = below, above
        while high - low > 1:
            middle = (low + high) // 2
            if holds(middle) == (first is not None):
                low = middle
            else:
                high = middle
        if first is None:
            first = high
        else:
            ranges.append((first, low))
            first = None
    return ranges if first is None else [*ranges, (first, rungs[-1])]
