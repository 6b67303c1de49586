"""Two profiles side by side: how much longer the second takes, per term, over one set of shapes.

The set is a standard one, of large models. Where neither profile has been measured near it (a small device, calibrated
for small models) it is made of the shapes at which the first one was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.curves.decode import DecodeCurve
from sim.curves.gemm import GemmCurve
from sim.curves.prefill import PrefillCurve
from sim.curves.term import Curve, Float, floats
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
DRIFT = 0.05
"""A term has drifted where its median changed by more than this, and by more than the two fits miss held-out rows."""


@dataclass(frozen=True)
class Change:
    """Relative change of one term from the first profile to the second."""

    term: str
    shapes: int
    median: float
    lowest: float
    highest: float
    drifted: bool


def changes(first: Profile, second: Profile) -> list[Change]:
    """Compare the terms that both have."""
    theirs = dict(_times(second, first))
    out = []
    for term, times in _times(first, first):
        if term in theirs:
            change = theirs[term] / times - 1
            middle, low, high = float(np.median(change)), float(change.min()), float(change.max())
            drifted = abs(middle) > max(DRIFT, _missed(first, term) + _missed(second, term))
            out.append(Change(term, len(change), middle, low, high, drifted))
    return out


def only_in_one(first: Profile, second: Profile) -> list[str]:
    """Name terms that one of the two lacks."""
    return sorted({term for term, _ in _times(first, first)} ^ {term for term, _ in _times(second, second)})


def _missed(profile: Profile, term: str) -> float:
    """Median error of a term on held-out rows; 0 where it was not judged."""
    return next((residual.median for residual in profile.residuals if residual.term == term), 0.0)


def _times(profile: Profile, shapes_of: Profile) -> Iterator[tuple[str, Float]]:
    """Times of `profile` at shapes that do not depend on it, so that two can be compared."""
    for dtype in profile.gemm:
        tokens, shapes = _gemm_shapes(shapes_of.gemm.get(dtype))
        yield f"gemm/{dtype}", np.concatenate([profile.gemm_s(dtype, tokens, n, k) for n, k in shapes])
    for dtype in profile.prefill_attention:
        layouts, new_tokens, contexts = _prefill_shapes(shapes_of.prefill_attention.get(dtype))
        parts = [
            profile.prefill_attention_s(dtype, *layout, new_tokens, context)
            for layout in layouts
            for context in contexts
        ]
        yield f"prefill_attention/{dtype}", np.concatenate(parts)
    for dtype in profile.decode_attention:
        layouts, num_seqs, mean_contexts = _decode_shapes(shapes_of.decode_attention.get(dtype))
        parts = [
            profile.decode_attention_s(dtype, *layout, seqs, seqs * mean_contexts)
            for layout in layouts
            for seqs in num_seqs
        ]
        yield f"decode_attention/{dtype}", np.concatenate(parts)
    for dtype in profile.moe:
        parts = [profile.moe_s(dtype, TOKENS, *moe, tp) for moe in MOES for tp in (1, 4)]
        yield f"moe/{dtype}", np.concatenate(parts)
    if profile.all_reduce is not None:
        for gpus in sorted(profile.all_reduce.time_s):
            yield f"all_reduce/{gpus} GPUs", profile.all_reduce_s(gpus, MESSAGES)
    yield "elementwise", profile.elementwise_s(TOKENS, BYTES_PER_TOKEN)


Layout = tuple[int, int, int, int]


def _gemm_shapes(curve: GemmCurve | None) -> tuple[Float, list[tuple[int, int]]]:
    if curve is None or curve.table is None or any(curve.outside({"n": n, "k": k}) is None for n, k in GEMMS):
        return TOKENS, list(GEMMS)
    m, n, k = (2.0 ** floats(curve.table.axes[axis]) for axis in "mnk")
    return m, [(round(a), round(b)) for a in n for b in k]


def _prefill_shapes(curve: PrefillCurve | None) -> tuple[list[Layout], Float, list[int]]:
    if curve is None or _has_standard(curve):
        return list(LAYOUTS), NEW_TOKENS, list(CONTEXTS)
    lengths, deepest = curve.fitted["new_tokens"], curve.fitted["context_tokens"][1]
    return _own_layouts(curve), np.geomspace(*lengths, 8), [0, round(deepest)]


def _decode_shapes(curve: DecodeCurve | None) -> tuple[list[Layout], list[int], Float]:
    if curve is None or _has_standard(curve):
        return list(LAYOUTS), list(NUM_SEQS), MEAN_CONTEXTS
    seqs = sorted({round(count) for count in np.geomspace(*curve.fitted["num_seqs"], 4)})
    return _own_layouts(curve), seqs, np.geomspace(*curve.fitted["mean_context"], 8)


def _has_standard(curve: Curve) -> bool:
    """Whether one of the standard layouts was measured, or nobody knows."""
    known = [{"heads": heads, "kv_heads": kv, "head_dim": dim} for heads, kv, dim, _ in LAYOUTS]
    return any(curve.outside(layout) is None for layout in known)


def _own_layouts(curve: Curve) -> list[Layout]:
    heads, kv_heads, head_dim = (round(curve.fitted[axis][1]) for axis in ("heads", "kv_heads", "head_dim"))
    return [(heads, kv_heads, head_dim, 0)]
