"""Hit rates of a prefix cache by capacity and eviction policy, over one trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.kv.eviction.lru import Lru
from sim.kv.eviction.named import NamedEviction
from sim.kv.replay.block_accesses import BlockAccesses
from sim.kv.replay.lru_curve import LruCurve, lru_curve, tail_first_curve
from sim.kv.replay.prefix_replay import Hits, replay
from workloads.errors import ConfigError

SHARES = (0.5, 0.9, 0.99)
"""Of the infinite cache's hits: the capacities that reach them are part of every answer."""


@dataclass(frozen=True)
class Measured:
    """One cache."""

    capacity: int
    eviction: NamedEviction
    hits: Hits


@dataclass(frozen=True, eq=False)
class CacheStudy:
    """What was found, beside what any cache could reach."""

    accesses: BlockAccesses
    curve: LruCurve
    measured: tuple[Measured, ...]

    @property
    def unique_blocks(self) -> int:
        return int(np.unique(self.accesses.blocks).size)

    def rates(self, hits: Hits) -> dict[str, int | float]:
        """Return hits as counts and as shares of all accesses and of all input tokens."""
        blocks, tokens = max(len(self.accesses), 1), max(self.accesses.input_tokens, 1)
        return {
            "hits": hits.per_block,
            "hit_rate": hits.per_block / blocks,
            "leading_run_hits": hits.leading_run,
            "leading_run_hit_rate": hits.leading_run / blocks,
            "hit_tokens": hits.tokens,
            "token_hit_rate": hits.tokens / tokens,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.accesses.offsets.size - 1,
            "accesses": len(self.accesses),
            "unique_blocks": self.unique_blocks,
            "block_tokens": self.accesses.block_tokens,
            "input_tokens": self.accesses.input_tokens,
            "infinite": self.rates(self.curve.infinite),
            "lru_capacity_for": {f"{share:g}": self.curve.capacity_for(share) for share in SHARES},
            "results": [
                {
                    "capacity": one.capacity,
                    "eviction": one.eviction.name,
                    "options": one.eviction.options,
                    **self.rates(one.hits),
                }
                for one in self.measured
            ],
        }


def study(
    accesses: BlockAccesses,
    evictions: Sequence[NamedEviction],
    capacities: Sequence[int],
    on_replay: Callable[[], None] = lambda: None,
) -> CacheStudy:
    """Measure every policy at every capacity: LRU in one pass for all capacities, the others in a pass each."""
    if wrong := [capacity for capacity in capacities if capacity < 1]:
        raise ConfigError(f"capacity: {wrong[0]} is not a number of blocks; give at least 1")
    plain = lru_curve(accesses)
    tail = None
    if any(one.tail_first and isinstance(one.policy, Lru) for one in evictions):
        tail = tail_first_curve(accesses)
    measured = []
    for eviction in evictions:
        curve = (tail if eviction.tail_first else plain) if isinstance(eviction.policy, Lru) else None
        for capacity in capacities:
            if curve is not None and capacity >= curve.valid_from:
                hits = curve.at(capacity)
            else:
                hits = replay(accesses, eviction.policy, capacity, tail_first=eviction.tail_first)
            measured.append(Measured(capacity, eviction, hits))
            on_replay()
    return CacheStudy(accesses, plain, tuple(measured))
