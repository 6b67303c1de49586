"""A Llama-type transformer over packed tokens: GEMMs over all tokens of a step at once, attention by whoever holds KV.

    x = x + attention(norm(x));  x = x + down(silu(gate) * up) of norm(x);  logits = norm(x) head

(Touvron et al., "Llama 2", 2023; grouped-query attention: Ainslie et al., 2023; rotary embedding: Su et al., 2021;
RMSNorm: Zhang and Sennrich, 2019; SwiGLU: Shazeer, 2020.)
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hwbackend.device import Array, Device
from hwbackend.engine.weights import NORM_EPS, ROPE_THETA, LayerWeights, Weights
from sim.model import ModelSpec


class Attention(Protocol):
    """Keeps the KV of a step's tokens, and attends to that of their sequences."""

    def attend(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """Append k, v [tokens, kv_heads, head_dim] to the layer's KV; q [tokens, heads, head_dim] -> the same shape."""


class Transformer:
    """Weights on a device, and the operations between them."""

    def __init__(self, model: ModelSpec, weights: Weights, device: Device, max_positions: int) -> None:
        self.model = model
        self._xp = device.xp
        self._ops = device.ops
        self._weights = _on(device, weights)
        self._heads = (model.num_heads, model.num_kv_heads, model.head_dim)
        self._turns = device.ops.rope_table(max_positions, model.head_dim, ROPE_THETA)

    def hidden(self, tokens: Array, positions: Array, attention: Attention) -> Array:
        """Last hidden states [n, hidden] of tokens [n] at positions [n] of their sequences."""
        x = self._weights.embedding[tokens]
        for number, layer in enumerate(self._weights.layers):
            self._ops.add(x, self._attention(number, layer, x, positions, attention))
            self._ops.add(x, self._mlp(layer, x))
        return x

    def logits(self, hidden: Array) -> Array:
        """[rows, vocab] in float32, of hidden states [rows, hidden]."""
        ops = self._ops
        normed = ops.rms_norm(hidden, self._weights.final_norm, NORM_EPS)
        return ops.to_floats(ops.matmul(normed, self._weights.head))

    def greedy(self, logits: Array) -> Array:
        """The likeliest token of each row; the first of equals."""
        return self._xp.argmax(logits, axis=1)

    def _attention(
        self, number: int, layer: LayerWeights, x: Array, positions: Array, attention: Attention
    ) -> Array:
        ops, (heads, kv_heads, dim) = self._ops, self._heads
        qkv = ops.matmul(ops.rms_norm(x, layer.attention_norm, NORM_EPS), layer.qkv)
        tokens = qkv.shape[0]
        split = qkv.reshape(tokens, heads + 2 * kv_heads, dim)
        q, k, v = split[:, :heads], split[:, heads : heads + kv_heads], split[:, heads + kv_heads :]
        ops.rope(q, k, positions, self._turns)
        attended = attention.attend(number, q, k, v)
        return ops.matmul(attended.reshape(tokens, heads * dim), layer.output)

    def _mlp(self, layer: LayerWeights, x: Array) -> Array:
        ops = self._ops
        gate_up = ops.matmul(ops.rms_norm(x, layer.mlp_norm, NORM_EPS), layer.gate_up)
        return ops.matmul(ops.silu_mul(gate_up), layer.down)


def _on(device: Device, weights: Weights) -> Weights:
    """Copy the weights there, in the dtype of the device's operations."""

    def put(array: Any) -> Array:  # noqa: ANN401  an array of NumPy
        return device.ops.to_values(device.to_device(np.ascontiguousarray(array, dtype=np.float32)))

    layers = tuple(
        LayerWeights(*(put(getattr(layer, name)) for name in LayerWeights.__slots__))
        for layer in weights.layers
    )
    return Weights(put(weights.embedding), layers, put(weights.final_norm), put(weights.head))
