"""Reader of Hugging Face `config.json` files: the fields of a `ModelSpec`, or a refusal that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from workloads.errors import ConfigError

# Architectures whose layer is attention + gated MLP (or experts of that kind): one arithmetic.
_DENSE: Final = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Mistral3ForConditionalGeneration",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
}
_MOE: Final = {"MixtralForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"}
_TIED_BY_DEFAULT: Final = {"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"}
_QK_NORM: Final = {
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
}


def model_fields(path: Path) -> dict[str, Any]:
    """Read the fields of a `ModelSpec` that the file at `path` states: a config.json, or what holds one as `model`."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {path}: not a readable JSON file ({error})") from error
    if isinstance(document, dict) and isinstance(document.get("model"), dict):  # meta data of a recorded run
        document = document["model"]
    if not isinstance(document, dict) or not document.get("architectures"):
        raise ConfigError(f"model: {path}: no field 'architectures'; expected a Hugging Face config.json")
    return _Config(path, document).fields()


class _Config:
    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.architecture = str(document["architectures"][0])
        self.text: dict[str, Any] = {**document, **document.get("text_config", {})}
        if self.architecture.startswith(("Deepseek", "Kimi", "LongcatFlash")):
            raise ConfigError(
                f"model: {path}: {self.architecture} uses latent attention (MLA), not priced for now"
            )
        if self.architecture not in _DENSE | _MOE:
            known = ", ".join(sorted(_DENSE | _MOE))
            raise ConfigError(
                f"model: {path}: architecture {self.architecture!r} is not known; known: {known}"
            )

    def fields(self) -> dict[str, Any]:
        heads = self._count("num_attention_heads")
        window, window_layers = self._window()
        return {
            "architecture": self.architecture,
            "num_layers": self._count("num_hidden_layers"),
            "hidden_size": self._count("hidden_size"),
            "num_heads": heads,
            "num_kv_heads": self._count("num_key_value_heads", heads),
            "head_dim": self._count("head_dim", self._count("hidden_size") // heads),
            "intermediate_size": self._count("intermediate_size"),
            "vocab_size": self._count("vocab_size"),
            "max_position_embeddings": self._count("max_position_embeddings"),
            "tie_word_embeddings": bool(
                self.text.get("tie_word_embeddings", self.architecture in _TIED_BY_DEFAULT)
            ),
            "qkv_bias": bool(self.text.get("attention_bias", self.architecture == "Qwen2ForCausalLM")),
            "qk_norm": self.architecture in _QK_NORM,
            "sliding_window": window,
            "num_window_layers": window_layers,
            "moe": self._moe(),
            "source": str(self.path.name),
            **self._weights(),
        }

    def _count(self, key: str, default: int | None = None) -> int:
        value = self.text.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"model: {self.path}: field {key!r} is {value!r}; expected a positive integer")
        return value

    def _window(self) -> tuple[int | None, int]:
        """Return the sliding window [tokens] and the number of layers that use it."""
        layers = self._count("num_hidden_layers")
        if self.text.get("sliding_window") is None or self.text.get("use_sliding_window") is False:
            return None, 0
        window = self._count("sliding_window")
        if kinds := self.text.get("layer_types"):
            count = sum(kind == "sliding_attention" for kind in kinds)
        elif self.architecture.startswith("Gemma3"):  # every sixth layer attends to everything
            count = layers - layers // self._count("sliding_window_pattern", 6)
        elif self.architecture in {"Gemma2ForCausalLM", "GptOssForCausalLM"}:  # every other layer
            count = (layers + 1) // 2
        elif self.architecture.startswith("Qwen"):  # only layers from max_window_layers on
            count = max(0, layers - self._count("max_window_layers", layers))
        else:
            count = layers
        return (window, count) if count else (None, 0)

    def _moe(self) -> dict[str, int] | None:
        if self.architecture not in _MOE:
            return None
        if self.text.get("mlp_only_layers") or self.text.get("decoder_sparse_step", 1) != 1:
            raise ConfigError(
                f"model: {self.path}: dense layers between expert layers are not priced for now"
            )
        experts = "num_local_experts" if "num_local_experts" in self.text else "num_experts"
        return {
            "num_experts": self._count(experts),
            "top_k": self._count("num_experts_per_tok"),
            "expert_intermediate_size": self._count(
                "moe_intermediate_size", self._count("intermediate_size")
            ),
        }

    def _weights(self) -> dict[str, str]:
        """Dtype of a quantised checkpoint."""
        quantization = self.text.get("quantization_config")
        if not quantization:
            return {}
        method = str(quantization.get("quant_method", quantization.get("quant_algo", "?"))).lower()
        if method == "mxfp4":
            return {"expert_weight_dtype": "mxfp4"}
        if method == "fp8":
            return {"weight_dtype": "fp8_block" if quantization.get("weight_block_size") else "fp8"}
        raise ConfigError(
            f"model: {self.path}: quantization method {method!r} is not known (fp8, mxfp4 are); "
            f"remove quantization_config and set hardware.weight_dtype"
        )
