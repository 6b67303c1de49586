"""Attention mass of one query: over the tokens of its context, and over the pages that hold them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def token_mass(q: Float64, keys: Float64) -> Float64:
    """Softmax of q k / sqrt(d), in float64: q [h, d], keys [tokens, kvh, d] -> [h, tokens], each row adding up to 1.

    Head i reads KV head i // (h / kvh), as `hwbackend.ops` has it; the tokens are all those that the query sees.
    """
    heads, dim = q.shape
    tokens, kv_heads, _ = keys.shape
    grouped = q.reshape(kv_heads, heads // kv_heads, dim).astype(np.float64)
    scores = np.einsum("kgd,tkd->kgt", grouped, keys.astype(np.float64)).reshape(heads, tokens) / np.sqrt(dim)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mass: Float64 = weights / weights.sum(axis=1, keepdims=True)
    return mass


def page_mass(mass: Float64, block_size: int) -> Float64:
    """[..., tokens] -> [..., pages of block_size tokens]; the last page may hold fewer tokens."""
    starts = np.arange(0, mass.shape[-1], block_size)
    return np.add.reduceat(mass, starts, axis=-1)
