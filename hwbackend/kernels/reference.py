"""Float64 references: one token and one head at a time, as the definitions say. Slow on purpose.

They take and give plain float64 arrays; who compares 8-bit or 16-bit kernels passes the values that those store.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def attend(q: Floats, keys: Floats, values: Floats) -> Floats:
    """One query q[d] over keys and values [tokens, d]; zeros where there are none."""
    if len(keys) == 0:
        return np.zeros_like(q)
    return softmax(keys @ q / np.sqrt(len(q))) @ values


def tokens_of(plane: Floats, block_table: Ints, num_tokens: int) -> Floats:
    """Keys (or values) [num_tokens, kvh, d] of a sequence from [num_blocks, block_size, kvh, d]."""
    size = plane.shape[1]
    found = [plane[block_table[i // size], i % size] for i in range(num_tokens)]
    return np.array(found).reshape(num_tokens, *plane.shape[2:])


def causal_attention(q: Floats, keys: Floats, values: Floats, first: int, window: int | None) -> Floats:
    """q[n, h, d] at positions first, first + 1, ... over keys and values [first + n, kvh, d]."""
    group = q.shape[1] // keys.shape[1]
    out = np.zeros_like(q)
    for i in range(q.shape[0]):
        end = first + i + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(q.shape[1]):
            kv_head = head // group
            out[i, head] = attend(q[i, head], keys[begin:end, kv_head], values[begin:end, kv_head])
    return out


def prefill_attention(
    q: Floats, data: Floats, block_table: Ints, context_len: int, window: int | None = None
) -> Floats:
    """As `Ops.prefill_attention`; data: [2, num_blocks, block_size, kvh, d]."""
    keys, values = (tokens_of(plane, block_table, context_len + q.shape[0]) for plane in data)
    return causal_attention(q, keys, values, context_len, window)


def decode_attention(
    q: Floats, data: Floats, block_tables: Ints, context_lens: Ints, window: int | None = None
) -> Floats:
    """As `Ops.decode_attention`; data: [2, num_blocks, block_size, kvh, d]."""
    out = np.zeros_like(q)
    for i, length in enumerate(context_lens):
        if length > 0:
            keys, values = (tokens_of(plane, block_tables[i], length) for plane in data)
            out[i] = causal_attention(q[i : i + 1], keys, values, length - 1, window)[0]
    return out


def contiguous_decode_attention(q: Floats, k: Floats, v: Floats, context_lens: Ints) -> Floats:
    """As `Ops.contiguous_decode_attention`."""
    out = np.zeros_like(q)
    for i, length in enumerate(context_lens):
        if length > 0:
            out[i] = causal_attention(q[i : i + 1], k[i, :length], v[i, :length], length - 1, None)[0]
    return out


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    return np.array([row / np.sqrt(np.mean(row**2) + eps) * weight for row in x]).reshape(x.shape)


def rope(x: Floats, positions: Ints, theta: float) -> Floats:
    """Rotated x[n, heads, d]: pairs (j, j + d/2) as complex numbers, turned by position * theta^(-2j/d)."""
    half = x.shape[2] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=2)


def silu_mul(gate_up: Floats) -> Floats:
    gate, up = np.split(gate_up, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up
