"""A transformer as plain as can be: float64, one sequence, no cache, everything computed again for every token."""

from __future__ import annotations

import numpy as np

from hwbackend.engine.weights import NORM_EPS, ROPE_THETA, Weights
from sim.model import ModelSpec


def norm(x, weight):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + NORM_EPS) * weight


def rope(x, positions):
    """x [tokens, heads, dim]: the first and the second half of each head as the parts of complex numbers."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * ROPE_THETA ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def logits_of(model: ModelSpec, weights: Weights, tokens, visible=None, masses=None) -> np.ndarray:
    """Logits [vocab] behind the last of `tokens`.

    `visible(layer, query, tokens)` may say which keys a query sees, as a mask over those up to it; the list `masses`
    gets what the last token attends to, [heads, tokens] of each layer.
    """
    heads, kv_heads, dim = model.num_heads, model.num_kv_heads, model.head_dim
    positions = np.arange(len(tokens))
    x = weights.embedding.astype(np.float64)[np.asarray(tokens)]
    for number, layer in enumerate(weights.layers):
        h = norm(x, layer.attention_norm.astype(np.float64))
        qkv = (h @ layer.qkv.astype(np.float64)).reshape(len(tokens), heads + 2 * kv_heads, dim)
        q = rope(qkv[:, :heads], positions)
        k = rope(qkv[:, heads : heads + kv_heads], positions)
        v = qkv[:, heads + kv_heads :]
        out, last = np.zeros_like(q), np.zeros((heads, len(tokens)))
        for head in range(heads):
            own = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, own].T / np.sqrt(dim)
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            if visible is not None:
                for query in range(len(tokens)):
                    mask = visible(number, query, len(tokens))
                    scores[query, ~mask] = -np.inf
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            out[:, head], last[head] = p @ v[:, own], p[-1]
        if masses is not None:
            masses.append(last)
        x = x + out.reshape(len(tokens), -1) @ layer.output.astype(np.float64)
        h = norm(x, layer.mlp_norm.astype(np.float64)) @ layer.gate_up.astype(np.float64)
        gate, up = np.split(h, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down.astype(np.float64)
    return norm(x[-1], weights.final_norm.astype(np.float64)) @ weights.head.astype(np.float64)
