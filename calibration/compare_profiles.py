"""Two profiles side by side: how much longer the second takes, per term, over a standard set of shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.curves.term import Float, floats
from sim.profile import Profile

TOKENS = floats([1, 8, 32, 64, 256, 1024, 4096, 8192])
GEMMS = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (57344, 8192),
    (8192, 28672),
)
"""(n, k): the layers of Llama 3.1 8B and some of 70B."""
LAYOUTS = ((32, 8, 128, 0), (64, 8, 128, 0), (8, 1, 128, 0), (64, 8, 64, 128))
NEW_TOKENS = floats([64, 512, 2048, 8192])
CONTEXTS = (0, 8192)
NUM_SEQS = (1, 16, 64, 256)
MEAN_CONTEXTS = floats([128, 1024, 4096, 16384])
MOES = ((4096, 14336, 2, 8), (2048, 768, 8, 128), (2880, 2880, 4, 128))
"""(hidden, inter, top_k, experts): Mixtral 8x7B, Qwen3-30B-A3B, gpt-oss-120b."""
MESSAGES = floats([2.0**power for power in range(13, 27)])
BYTES_PER_TOKEN = 16384


@dataclass(frozen=True)
class Change:
    """Relative change of one term from the first profile to the second."""

    term: str
    shapes: int
    median: float
    lowest: float
    highest: float


def changes(first: Profile, second: Profile) -> list[Change]:
    """Compare the terms that both have."""
    theirs = dict(_times(second))
    out = []
    for term, times in _times(first):
        if term in theirs:
            change = theirs[term] / times - 1
            middle, low, high = float(np.median(change)), float(change.min()), float(change.max())
            out.append(Change(term, len(change), middle, low, high))
    return out


def only_in_one(first: Profile, second: Profile) -> list[str]:
    """Name terms that one of the two lacks."""
    return sorted({term for term, _ in _times(first)} ^ {term for term, _ in _times(second)})


def _times(profile: Profile) -> Iterator[tuple[str, Float]]:
    for dtype in profile.gemm:
        yield f"gemm/{dtype}", np.concatenate([profile.gemm_s(dtype, TOKENS, n, k) for n, k in GEMMS])
    for dtype in profile.prefill_attention:
        parts = [
            profile.prefill_attention_s(dtype, *layout, NEW_TOKENS, context)
            for layout in LAYOUTS
            for context in CONTEXTS
        ]
        yield f"prefill_attention/{dtype}", np.concatenate(parts)
    for dtype in profile.decode_attention:
        parts = [
            profile.decode_attention_s(dtype, *layout, seqs, seqs * MEAN_CONTEXTS)
            for layout in LAYOUTS
            for seqs in NUM_SEQS
        ]
        yield f"decode_attention/{dtype}", np.concatenate(parts)
    for dtype in profile.moe:
        parts = [profile.moe_s(dtype, TOKENS, *moe, tp) for moe in MOES for tp in (1, 4)]
        yield f"moe/{dtype}", np.concatenate(parts)
    if profile.all_reduce is not None:
        for gpus in sorted(profile.all_reduce.time_s):
            yield f"all_reduce/{gpus} GPUs", profile.all_reduce_s(gpus, MESSAGES)
    yield "elementwise", profile.elementwise_s(TOKENS, BYTES_PER_TOKEN)
