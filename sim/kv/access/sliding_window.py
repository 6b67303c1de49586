"""Sliding-window attention with sinks: the last tokens and the first few (StreamingLLM, Xiao et al., ICLR 2024)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.kv.access.reads import Reads, num_blocks
from workloads.errors import ConfigError


class SlidingWindow(BaseModel):
    """Read the last `window_tokens` and the first `sink_tokens`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["sliding_window"] = "sliding_window"
    window_tokens: Annotated[int, Field(strict=True, ge=1, le=1 << 30)] = 1024
    """Tokens of the window, the query's own included."""
    sink_tokens: Annotated[int, Field(strict=True, ge=0, le=1 << 20)] = 4
    """Tokens at the start that are read always."""
    full_groups: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()
    """Groups of layers, from 0, that read everything, where a model mixes both kinds."""

    @model_validator(mode="after")
    def _each_group_once(self) -> SlidingWindow:
        if len(set(self.full_groups)) < len(self.full_groups):
            raise ValueError("full_groups names a group twice")
        return self

    def build(self, groups: int, block_size: int, seed: int) -> SlidingWindowAccess:  # noqa: ARG002  nothing random
        beyond = [group for group in self.full_groups if group >= groups]
        if beyond:
            raise ConfigError(f"full_groups: there is no group {beyond[0]}; groups are 0 to {groups - 1}")
        return SlidingWindowAccess(self, groups, block_size)


class SlidingWindowAccess:
    """Pages that hold at least one token of the window or of the sinks."""

    def __init__(self, config: SlidingWindow, groups: int, block_size: int) -> None:
        self.groups = groups
        self.block_size = block_size
        self._config = config
        self._full = np.zeros(groups, dtype=np.bool_)
        self._full[list(config.full_groups)] = True

    def reads(self, sequence: int, context_tokens: int) -> Reads:  # noqa: ARG002  all sequences read alike
        blocks = num_blocks(context_tokens, self.block_size)
        window_start = max(context_tokens - self._config.window_tokens, 0)
        mask = always_read(context_tokens, self.block_size, self._config.sink_tokens, window_start)
        return Reads.of_mask(self._full[:, None] | np.broadcast_to(mask, (self.groups, blocks)))

    known = reads


def always_read(
    context_tokens: int, block_size: int, sink_tokens: int, from_token: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Blocks with one of the first `sink_tokens` tokens, or one from `from_token` on."""
    mask = np.zeros(num_blocks(context_tokens, block_size), dtype=np.bool_)
    mask[: num_blocks(sink_tokens, block_size)] = True
    mask[from_token // block_size :] = True
    return mask
