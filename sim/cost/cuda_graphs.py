"""CUDA graphs: which token counts an engine captures, and to which of them a step is padded.

The default list is vLLM V1's (`vllm/config/vllm.py`, `_set_cudagraph_sizes`): 1, 2, 4, then every 8 below
256, then every 16, up to `min(2 x max_num_seqs, 512)`, never above `max_num_batched_tokens`. Steps of pure
decode replay a full graph (captured up to `max_num_seqs`); mixed steps up to the largest size replay
piecewise graphs, with attention between the pieces; larger steps launch every kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workloads.errors import ConfigError

CudaGraphMode = Literal["full_and_piecewise", "full_decode_only", "none"]
"""vLLM's `cudagraph_mode`: which steps replay graphs. `full_decode_only`: steps of pure decode alone; `none`: no step,
but the code is compiled, other than under `enforce_eager`."""


def capture_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    enforce_eager: bool = False,
    cudagraph_mode: CudaGraphMode = "full_and_piecewise",
    cudagraph_capture_sizes: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Token counts with a captured graph, ascending; none under `enforce_eager`.

    Mixed steps may have fewer: see
    `CudaGraphMode`.
    """
    if enforce_eager or cudagraph_mode == "none":
        return ()
    if cudagraph_capture_sizes is not None:
        if not cudagraph_capture_sizes or min(cudagraph_capture_sizes) < 1:
            raise ConfigError(
                "engine.cudagraph_capture_sizes: give at least one size, each at least 1, or null"
            )
        return tuple(sorted({size for size in cudagraph_capture_sizes if size <= max_num_batched_tokens}))
    largest = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def padded_tokens(sizes: Sequence[int], max_tokens: int) -> NDArray[np.int64]:
    """Entry t is how many tokens a step of t tokens computes: the next captured size, else t itself."""
    tokens = np.arange(max_tokens + 1, dtype=np.int64)
    if not sizes:
        return tokens
    ladder = np.asarray(sizes, dtype=np.int64)
    index = np.searchsorted(ladder, tokens)
    inside = index < len(ladder)
    tokens[inside] = ladder[index[inside]]
    tokens[0] = 0
    return tokens
