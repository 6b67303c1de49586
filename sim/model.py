"""Models: what the arithmetic of a transformer needs to know, and nothing else.

The shipped table (`models.json`) restates the facts of 20 public models; each names its source.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sim.hf_config import model_fields
from workloads.errors import ConfigError

# Bytes per weight. nvfp4: 4 bits and one 8-bit scale per 16 weights; mxfp4: one 8-bit scale per 32.
# The scales of fp8 (one per tensor, or per 128 x 128 block) are below 0.03% and left out.
WEIGHT_BYTES: Final = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
}
KV_BYTES: Final = {"auto": 2, "float32": 4, "bfloat16": 2, "fp8": 1}
_LINEAR: Final = ("float32", "bfloat16", "fp8", "fp8_block", "nvfp4")
_SHIPPED: Final = Path(__file__).with_name("models.json")


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Routed experts: the MLP of every layer but the first `first_dense_layers`."""

    num_experts: int
    top_k: int
    expert_intermediate_size: int
    num_shared_experts: int = 0
    first_dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek): kept so that weights can be counted; not priced yet."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder with gated MLPs (the Llama family), dense or with experts.

    Parameters count the matrices; norms and biases (below 0.01%) are left out. `sliding_window` [tokens]
    holds in `num_window_layers` of the layers. `weight_dtype` is the checkpoint's own, `expert_weight_dtype`
    the experts' where it differs.
    """

    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_window_layers: int = 0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    weight_dtype: str = "bfloat16"
    expert_weight_dtype: str | None = None
    source: str = ""

    @property
    def num_full_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.num_layers - self.num_window_layers

    @property
    def kv_group_layers(self) -> int:
        """Layers that share one block number: the engine gives each kind of layer its own blocks.

        Groups are as large as the rarer kind (vLLM `kv_cache_utils`), so a block of gpt-oss covers 18 layers.
        """
        return min(self.num_full_layers or self.num_layers, self.num_window_layers or self.num_layers)

    @property
    def num_moe_layers(self) -> int:
        return 0 if self.moe is None else self.num_layers - self.moe.first_dense_layers

    @property
    def params_total(self) -> int:
        return self._params(self.moe.num_experts if self.moe else 0)

    @property
    def params_active_per_token(self) -> int:
        """Parameters that one token meets: the chosen experts only."""
        return self._params(self.moe.top_k if self.moe else 0)

    def kv_heads_per_gpu(self, tensor_parallel_size: int = 1) -> int:
        """KV heads are split over the GPUs, and copied where there are more GPUs than heads."""
        self._require_divisible(tensor_parallel_size)
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def kv_bytes_per_token(self, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Bytes of KV that one token leaves on one GPU, over all layers."""
        return self.num_layers * self.kv_bytes_per_token_layer(kv_cache_dtype, tensor_parallel_size)

    def kv_bytes_per_token_layer(self, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Bytes of KV that one token leaves on one GPU in one layer."""
        size = KV_BYTES.get(kv_cache_dtype)
        if size is None:
            raise ConfigError(
                f"engine.kv_cache_dtype: {kv_cache_dtype!r} is not one of {', '.join(KV_BYTES)}"
            )
        if self.mla is not None:
            return size * (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim)
        return size * 2 * self.kv_heads_per_gpu(tensor_parallel_size) * self.head_dim

    def resolve_weight_dtype(self, weight_dtype: str) -> str:
        """Return the dtype of the linear layers: `auto` is the checkpoint's."""
        if weight_dtype == "auto":
            return self.weight_dtype
        if weight_dtype not in _LINEAR:
            raise ConfigError(
                f"hardware.weight_dtype: {weight_dtype!r} is not one of auto, {', '.join(_LINEAR)}"
            )
        return weight_dtype

    def plain_dtype(self, weight_dtype: str) -> str:
        """Return the dtype of what is never quantised: activations, embeddings, LM head, router."""
        return "float32" if self.resolve_weight_dtype(weight_dtype) == "float32" else "bfloat16"

    def resolve_kv_dtype(self, kv_cache_dtype: str, weight_dtype: str) -> str:
        """Return the dtype of the KV cache: `auto` is that of activations."""
        return self.plain_dtype(weight_dtype) if kv_cache_dtype == "auto" else kv_cache_dtype

    def resolve_expert_dtype(self, weight_dtype: str) -> str:
        """Return the dtype of the routed experts; those of a checkpoint that quantised them stay as they are.

        vLLM quantises 16-bit weights while loading; it does not quantise 4-bit experts again.
        """
        linear = self.resolve_weight_dtype(weight_dtype)
        return self.expert_weight_dtype or linear

    def weight_bytes(self, weight_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Bytes of weights on one GPU. Embeddings, LM head and router are not quantised, as engines have it."""
        self._require_divisible(tensor_parallel_size)
        linear = WEIGHT_BYTES[self.resolve_weight_dtype(weight_dtype)]
        experts = WEIGHT_BYTES[self.resolve_expert_dtype(weight_dtype)]
        plain = WEIGHT_BYTES[self.plain_dtype(weight_dtype)]
        tp = tensor_parallel_size
        embeddings = plain * self._embedding_params() / tp
        total = embeddings + self.num_layers * self._attention_params(tp) * linear
        total += (self.num_layers - self.num_moe_layers) * self._mlp_params() / tp * linear
        if self.moe is not None:
            shared = self.moe.num_shared_experts * self._expert_params() / tp * linear
            routed = self.moe.num_experts * self._expert_params() / tp * experts
            total += self.num_moe_layers * (shared + routed + plain * self.moe.num_experts * self.hidden_size)
        return round(total)

    def _params(self, experts: int) -> int:
        total = self._embedding_params() + self.num_layers * self._attention_params(1)
        total += (self.num_layers - self.num_moe_layers) * self._mlp_params()
        if self.moe is not None:
            routed = (experts + self.moe.num_shared_experts) * self._expert_params()
            total += self.num_moe_layers * (routed + self.moe.num_experts * self.hidden_size)
        return total

    def _embedding_params(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    def _attention_params(self, tp: int) -> int:
        if self.mla is not None:
            return self._mla_params(self.mla, tp)
        kv_heads = max(1, self.num_kv_heads // tp)
        return self.hidden_size * self.head_dim * 2 * (self.num_heads // tp + kv_heads)

    def _mla_params(self, mla: MlaSpec, tp: int) -> int:
        heads, nope, rope = self.num_heads // tp, mla.qk_nope_head_dim, mla.qk_rope_head_dim
        down = self.hidden_size * (mla.q_lora_rank + mla.kv_lora_rank + rope)
        up = heads * (mla.q_lora_rank * (nope + rope) + mla.kv_lora_rank * (nope + mla.v_head_dim))
        return down + up + heads * mla.v_head_dim * self.hidden_size

    def _mlp_params(self) -> int:
        return 3 * self.hidden_size * self.intermediate_size

    def _expert_params(self) -> int:
        return 0 if self.moe is None else 3 * self.hidden_size * self.moe.expert_intermediate_size

    def _require_divisible(self, tp: int) -> None:
        if tp < 1 or self.num_heads % tp or (self.num_kv_heads % tp and tp % self.num_kv_heads):
            raise ConfigError(
                f"hardware.tensor_parallel_size: {tp} does not divide the {self.num_heads} attention heads "
                f"and {self.num_kv_heads} KV heads of {self.name}; use one of {self._fitting_tp()}"
            )

    def _fitting_tp(self) -> str:
        heads, kv = self.num_heads, self.num_kv_heads
        fits = [tp for tp in range(1, min(heads, 64) + 1) if not heads % tp and not (kv % tp and tp % kv)]
        return ", ".join(map(str, fits))


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(_SHIPPED.read_text())
    return table


def shipped_models() -> tuple[str, ...]:
    """Names of the shipped models."""
    return tuple(_shipped())


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Load a shipped model by name (a hub name works too), or a HF `config.json`, or its folder, on disk."""
    path = Path(name_or_path)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.is_file():
        return _spec(path.parent.name or path.stem, model_fields(path))
    name = _short_name(str(name_or_path))
    fields = _shipped().get(name)
    if fields is None:
        near = difflib.get_close_matches(name, _shipped(), n=3, cutoff=0.4) or list(_shipped())
        raise ConfigError(
            f"model: {str(name_or_path)!r} is neither a shipped model nor a config.json; "
            f"nearest: {', '.join(near)}"
        )
    return _spec(name, fields)


def _short_name(name: str) -> str:
    """`meta-llama/Llama-2-7b-hf` -> `llama-2-7b`: variants that share one architecture."""
    short = name.rsplit("/", 1)[-1].lower().removeprefix("meta-")
    return re.sub(r"-(hf|instruct|chat|it|base|v0\.1)(?=-|$)", "", short)


def _spec(name: str, fields: dict[str, Any]) -> ModelSpec:
    moe, mla = fields.get("moe"), fields.get("mla")
    rest = {key: value for key, value in fields.items() if key not in ("moe", "mla", "head_dim")}
    return ModelSpec(
        name=name,
        head_dim=fields.get("head_dim") or rest["hidden_size"] // rest["num_heads"],
        moe=MoeSpec(**moe) if moe else None,
        mla=MlaSpec(**mla) if mla else None,
        **rest,
    )
