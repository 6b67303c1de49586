"""Between LRU and LFU: every use counts, and counts half as much after each half-life (LRFU).

The score of a block is the sum over its uses since it came of 2^(-age / half-life): the combined recency and
frequency of Lee, Choi, Kim, Noh, Min, Cho and Kim, "LRFU", IEEE Transactions on Computers 50(12), 2001, with
F(x) = (1/2)^(lambda x), lambda = 1 / half-life. Ages are counted in uses of the cache. A half-life of one use is
exactly LRU (one use outweighs all that came before it), an infinite one exactly LFU (all uses weigh the same).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from sim.kv.eviction.scored import ScoredEviction


def _number(value: Any) -> Any:  # noqa: ANN401  whatever a scenario holds
    return math.inf if value == "inf" else value


def _text(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


HalfLife = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    BeforeValidator(_number),
    PlainSerializer(_text, return_type=float | str),
]


class LruLfu(BaseModel):
    """Evict the block whose uses, counted half after each half-life, are worth least."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["lru_lfu"] = "lru_lfu"
    half_life: HalfLife = 1.0
    """When a use counts half: so many uses later, as a multiple of the cache's blocks; at least one. "inf" is LFU."""

    def build(self, num_blocks: int, uses: Sequence[int] | None = None) -> ScoredEviction[float]:  # noqa: ARG002
        return ScoredEviction(FadingCount(max(1.0, self.half_life * num_blocks)))


class FadingCount:
    """log2 of the sum of 2^(t / half_life) over the use times t of a block.

    This is log2 of the score plus now / half_life. All blocks share the second term, so their order is that of the
    scores at any time, and nothing has to be recomputed as blocks age.
    """

    def __init__(self, half_life: float) -> None:
        self._rate = 1.0 / half_life
        self._clock = 0

    def __call__(self, block: int, position: int, before: float | None) -> float:  # noqa: ARG002
        self._clock += 1
        now = self._clock * self._rate
        return now if before is None else now + math.log2(1.0 + 2.0 ** (before - now))
