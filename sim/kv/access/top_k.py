"""Top-k sparse attention: the nearest tokens, the sinks, and the k heaviest of the other pages in each layer group.

Attention mass of block b in group g of a sequence, for a query at context n:

    mass = importance^zipf_exponent / (1 + distance / reach_g)^decay,   distance = tokens after the block's last

`reach_g` falls geometrically from the first group to the last: low layers look far back, high layers hug the diagonal
(SYSTEMS O4). The logarithm of the importance is noise with an exponential distribution at its knots, so that masses
fall off by rank like a Zipf law with that exponent. There is a knot every `locality_blocks` blocks and, in time, every
1/churn steps, each with a phase of its own; between knots it is linear in both. So importance persists, drifts, and is
shared by neighbours. Attention to few tokens that persist: H2O (Zhang et al., NeurIPS 2023); pages chosen by query:
Quest (Tang et al., ICML 2024).

The shape is that of the literature; the numbers are assumptions. A recording (recorded.py) replaces them.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.kv.access.hashing import hashed, uniform
from sim.kv.access.reads import Float64, Reads, num_blocks
from sim.kv.access.sliding_window import always_read

Tokens = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TopK(BaseModel):
    """Read few pages, by attention mass."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["top_k"] = "top_k"
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of a sequence's blocks that each group reads beside the nearest and the sinks; by default 0.1."""
    blocks: Annotated[int, Field(strict=True, ge=0, le=1 << 24)] | None = None
    """The same as a number of blocks, instead."""
    zipf_exponent: Annotated[float, Field(ge=0, le=10)] = 1.0
    """How unevenly mass is spread; 0 leaves distance alone."""
    churn: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of its lifetime that a block's importance loses per step; 0 fixes it for good."""
    locality_blocks: Annotated[int, Field(strict=True, ge=1, le=1 << 16)] = 4
    """Blocks from one peak of importance to the next at the least."""
    near_tokens: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 32
    """Nearest tokens, the query's own included, that are read always."""
    sink_tokens: Annotated[int, Field(strict=True, ge=0, le=1 << 20)] = 4
    """Tokens at the start that are read always."""
    reach_first_tokens: Tokens = 4096.0
    """Distance at which mass has fallen to 1/2^decay, in the first group."""
    reach_last_tokens: Tokens = 64.0
    """The same in the last group."""
    decay: Annotated[float, Field(ge=0, le=16)] = 2.0
    """Exponent of the fall with distance; 0 makes distance irrelevant."""

    @model_validator(mode="after")
    def _one_size(self) -> TopK:
        if self.fraction is not None and self.blocks is not None:
            raise ValueError("give either fraction or blocks")
        return self

    def build(self, groups: int, block_size: int, seed: int) -> TopKAccess:
        return TopKAccess(self, groups, block_size, seed)


class TopKAccess:
    """All groups of a sequence at once; a step costs a few passes over groups x blocks."""

    def __init__(self, config: TopK, groups: int, block_size: int, seed: int) -> None:
        self.groups = groups
        self.block_size = block_size
        self._config = config
        self._fraction = 0.1 if config.fraction is None else config.fraction
        self._seed = np.uint64(seed % 2**64)
        fall = np.linspace(0.0, 1.0, groups) if groups > 1 else np.zeros(1)
        ratio = config.reach_last_tokens / config.reach_first_tokens
        self._reach = (config.reach_first_tokens * ratio**fall)[:, None]

    def reads(self, sequence: int, context_tokens: int) -> Reads:
        """The pages read, weighed by their share of the mass of all blocks."""
        log_mass = self.log_mass(sequence, context_tokens)
        mask = np.repeat(self._always(context_tokens)[None], self.groups, axis=0)
        others = log_mass.shape[1] - int(mask[0].sum())
        k = min(self._count(log_mass.shape[1]), others)
        if k == others:
            mask[:] = True
        elif k:
            heaviest = np.argpartition(np.where(mask, np.inf, -log_mass), k - 1, axis=1)[:, :k]
            np.put_along_axis(mask, heaviest, values=True, axis=1)
        mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
        return Reads.of_mask(mask, mass / mass.sum(axis=1, keepdims=True))

    def known(self, sequence: int, context_tokens: int) -> Reads:  # noqa: ARG002  the same for all
        """The nearest tokens and the sinks; which others count is the query's secret."""
        return Reads.of_mask(np.repeat(self._always(context_tokens)[None], self.groups, axis=0))

    def log_mass(self, sequence: int, context_tokens: int) -> Float64:
        """Logarithm of the mass, (groups, blocks), up to a constant per group."""
        config = self._config
        blocks = num_blocks(context_tokens, self.block_size)
        ends = np.minimum((np.arange(blocks) + 1) * self.block_size, context_tokens)
        fall = config.decay * np.log1p((context_tokens - ends) / self._reach)
        if not config.zipf_exponent:
            return -fall
        return config.zipf_exponent * self._log_importance(sequence, context_tokens, blocks) - fall

    def _log_importance(self, sequence: int, context_tokens: int, blocks: int) -> Float64:
        knots = np.arange((blocks - 1) // self._config.locality_blocks + 2)
        of_group = hashed(hashed(self._seed, sequence), np.arange(self.groups)[:, None])
        of_knot = hashed(of_group, knots)
        time = context_tokens * self._config.churn + uniform(of_knot)
        epoch = np.floor(time)
        before = -np.log(uniform(hashed(of_knot, epoch)))
        after = -np.log(uniform(hashed(of_knot, epoch + 1)))
        at_knots = before + (time - epoch) * (after - before)
        place, part = np.divmod(np.arange(blocks), self._config.locality_blocks)
        share = part / self._config.locality_blocks
        return at_knots[:, place] * (1.0 - share) + at_knots[:, place + 1] * share

    def _always(self, context_tokens: int) -> NDArray[np.bool_]:
        near = max(context_tokens - self._config.near_tokens, 0)
        return always_read(context_tokens, self.block_size, self._config.sink_tokens, near)

    def _count(self, blocks: int) -> int:
        if self._config.blocks is not None:
            return self._config.blocks
        return math.ceil(self._fraction * blocks)
