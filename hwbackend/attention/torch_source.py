"""A causal language model of Hugging Face transformers as a source: what its own attention returns as weights.

With `attn_implementation="eager"` transformers compute attention weights as such and hand them out
(`output_attentions`), with whatever the model does to its scores: windows, soft caps, sinks, biases. So every model of
the library that decodes with a KV cache can be watched, without a line about its architecture. Only decode steps ask
for weights; the prompt is computed in chunks, so that no square of its length is held.

PyTorch and transformers are no part of the project: install them beside it (`pip install torch transformers`). Models
are read from disk; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hwbackend.attention.mass import Float64
from hwbackend.attention.sampler import PageSampler
from sim.errors import ConfigError

PROMPT_CHUNK: Final = 256
"""Prompt tokens of a forward pass: weights of [heads, 256, prompt] are the most that is held of a layer."""
_MISSING: Final = "{0} is not installed; pip install torch transformers"


class TorchAttention:
    """An `AttentionSource`: a model of transformers that goes on from a prompt, the likeliest token each time.

    model           with a causal head, on any device; its attention is set to eager
    prompt          token ids
    random_weights  whether nobody trained it: weights do not tell
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401  of a library that may not be there
        prompt: Sequence[int] | NDArray[np.int64],
        name: str,
        *,
        random_weights: bool,
    ) -> None:
        if not len(prompt):
            raise ConfigError(f"{name}: the prompt is empty; give at least one token")
        config = model.config.get_text_config()
        self.num_layers = int(config.num_hidden_layers)
        self.num_kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self.random_weights = random_weights
        self._model = model
        self._prompt = np.asarray(prompt, dtype=np.int64)
        self._name = name
        forward = signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in forward else "past_key_values"  # renamed in transformers 5
        model.set_attn_implementation("eager")
        model.eval()

    @classmethod
    def load(
        cls, folder: Path, text: str, max_prompt_tokens: int | None = None, *, random_weights: bool = False
    ) -> TorchAttention:
        """Read model and tokenizer of a folder; ConfigError where there is none, or no library to read it."""
        if not folder.is_dir():
            raise ConfigError(
                f"{folder}: no such folder; give one with config.json, weights and tokenizer of a model"
            )
        _library("torch")
        transformers = _library("transformers")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, attn_implementation="eager"
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: {' '.join(str(error).split())}") from error
        prompt = tokenizer(text)["input_ids"][:max_prompt_tokens]
        return cls(model, prompt, folder.resolve().name, random_weights=random_weights)

    def __str__(self) -> str:
        kind = "random weights" if self.random_weights else "its own weights"
        return f"{self._name} with {kind}, from a prompt of {self._prompt.size} tokens"

    def decode(self, sampler: PageSampler) -> None:
        torch = _library("torch")
        model, ids = self._model, torch.from_numpy(self._prompt[None]).to(self._model.device)
        context_tokens, cache = self._prompt.size, {self._cache_name: None}
        with torch.inference_mode():
            for chunk in ids.split(PROMPT_CHUNK, dim=1):
                out = model(chunk, **cache, use_cache=True)
                cache = {self._cache_name: getattr(out, self._cache_name)}
            while not sampler.done:
                token = out.logits[:, -1:].argmax(dim=-1)
                out = model(token, **cache, use_cache=True, output_attentions=True)
                context_tokens += 1
                self._show(sampler, context_tokens, out.attentions)

    def _show(self, sampler: PageSampler, context_tokens: int, attentions: Sequence[Any] | None) -> None:
        shown = () if attentions is None else attentions
        if len(shown) != self.num_layers or any(weights is None for weights in shown):
            raise ConfigError(
                f"{self._name}: {len([w for w in shown if w is not None])} of its {self.num_layers} layers show "
                "attention weights; take a model of transformers with eager attention in every layer"
            )
        for layer, weights in enumerate(shown):
            mass = weights[0, :, -1].double().cpu().numpy()
            sampler.add(context_tokens, layer, _whole(mass, context_tokens))


def _whole(mass: Float64, context_tokens: int) -> Float64:
    """[heads, tokens seen] -> [heads, context_tokens], each adding up to 1.

    A window sees the latest tokens alone; a sink, which is no token, takes a part of the mass (gpt-oss); weights of 16
    bits add up to about 1.
    """
    whole = np.zeros((mass.shape[0], context_tokens))
    seen = min(mass.shape[1], context_tokens)
    whole[:, context_tokens - seen :] = mass[:, -seen:]
    scaled: Float64 = whole / whole.sum(axis=1, keepdims=True)
    return scaled


def _library(name: str) -> Any:  # noqa: ANN401  it has no types where it is not installed
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(_MISSING.format(name)) from None
