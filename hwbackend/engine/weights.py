"""Random weights of a Llama-type model: drawn by a seed, alike on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sim.errors import ConfigError
from sim.model import ModelSpec

Float32 = NDArray[np.float32]

ROPE_THETA: Final = 10_000.0  # of the first Llama; random weights know no other
NORM_EPS: Final = 1e-5


@dataclass(frozen=True, eq=False, slots=True)
class LayerWeights:
    """Matrices stand as [inputs, outputs]; `qkv` and `gate_up` are joined along the outputs."""

    attention_norm: Any  # [hidden]
    qkv: Any  # [hidden, (heads + 2 kv_heads) * head_dim]
    output: Any  # [heads * head_dim, hidden]
    mlp_norm: Any  # [hidden]
    gate_up: Any  # [hidden, 2 * intermediate]
    down: Any  # [intermediate, hidden]


@dataclass(frozen=True, eq=False, slots=True)
class Weights:
    """All of a model, as arrays of one library."""

    embedding: Any  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Any  # [hidden]
    head: Any  # [hidden, vocab]


def check_runs(model: ModelSpec) -> None:
    """Raise ConfigError where the model is more than attention, gated MLP and RMSNorm."""
    beyond = {
        "experts (moe)": model.moe is not None,
        "latent attention (mla)": model.mla is not None,
        "a sliding window": bool(model.num_window_layers),
        "norms of q and k (qk_norm)": model.qk_norm,
        "biases (qkv_bias)": model.qkv_bias,
    }
    named = ", ".join(name for name, there in beyond.items() if there)
    if named:
        raise ConfigError(
            f"model: {model.name} has {named}; the miniature engine runs plain Llama-type models"
        )


def random_weights(model: ModelSpec, seed: int) -> Weights:
    """Draw weights whose activations neither vanish nor grow: a standard deviation of 1/sqrt(inputs) each."""
    check_runs(model)
    rng = np.random.default_rng(seed)
    hidden, heads = model.hidden_size, model.num_heads * model.head_dim
    both = heads + 2 * model.num_kv_heads * model.head_dim

    def matrix(inputs: int, outputs: int) -> Float32:
        return (rng.standard_normal((inputs, outputs), dtype=np.float32) / np.float32(inputs**0.5)).astype(
            np.float32
        )

    def norm() -> Float32:
        return rng.uniform(0.5, 1.5, hidden).astype(np.float32)

    embedding = rng.standard_normal((model.vocab_size, hidden), dtype=np.float32)
    layers = tuple(
        LayerWeights(
            norm(),
            matrix(hidden, both),
            matrix(heads, hidden),
            norm(),
            matrix(hidden, 2 * model.intermediate_size),
            matrix(model.intermediate_size, hidden),
        )
        for _ in range(model.num_layers)
    )
    head = (
        embedding.T.copy() / np.float32(hidden**0.5)
        if model.tie_word_embeddings
        else matrix(hidden, model.vocab_size)
    )
    return Weights(embedding, layers, norm(), head)
