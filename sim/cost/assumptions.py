"""What the prices of a service assume where a user would expect something else: one line each, with why."""

from __future__ import annotations

import numpy as np

from sim.cost.terms import StepTerms, total
from sim.kv.compression import KvCompression

_TOKENS = (1, 4, 16, 64, 256, 1024)
"""Steps at which quantised layers are compared with 16-bit ones."""
_CLEARLY = 1.02


def assumptions(
    terms: StepTerms, weight_dtype: str, *, enforce_eager: bool, uncaptured: bool = False
) -> tuple[str, ...]:
    """Name the assumptions behind the prices of `terms`; `weight_dtype` is as it was asked for.

    `uncaptured`: mixed steps, or all of them, run compiled code without a graph.
    """
    said = [
        _kv_cache(terms),
        _shared_launches(terms),
        *_compression(terms),
        *_experts(terms, weight_dtype),
        _slower(terms),
    ]
    if enforce_eager and terms.call_s:
        said.append(
            "engine.enforce_eager: each operation of a layer costs the host "
            f"{1e6 * terms.call_s:.0f} us, as the engine's all-reduce does without a graph; no eager step was measured"
        )
    if uncaptured and terms.call_s:
        said.append(
            f"steps without a CUDA graph are bound by the host's calls, {1e6 * terms.call_s:.0f} us each: launches run "
            "ahead, so a step that takes the GPU longer costs no more; such steps were measured on B200 alone"
        )
    host = terms.profile.host
    if host is not None and host.source.startswith("taken over"):
        said.append(
            f"profile {terms.profile.name}: what an engine adds to its kernels is {host.source.split(':')[0]}"
        )
    return tuple(line for line in said if line is not None)


def _kv_cache(terms: StepTerms) -> str | None:
    if terms.decode_kv_dtype == terms.kv_dtype:
        return None
    return (
        f"engine.kv_cache_dtype {terms.kv_dtype}: more tokens fit, but decode attention is priced as with a "
        "16-bit cache: Llama-70B served on Hopper shows no gain (up to 64 sequences of 7,800 tokens), though the "
        "kernel alone is 1.3 to 1.6 times faster; longer contexts were not measured"
    )


def _shared_launches(terms: StepTerms) -> str | None:
    """Of GPUs that run FlashAttention 2, and whose launches of prompts and decodes together nobody timed."""
    capability = terms.profile.device.compute_capability
    if terms.shares_launches or not capability.startswith("8.") or terms.decode_kv_dtype != "bfloat16":
        return None
    return (
        "attention of decodes beside prompts is priced as alone; on RTX 4090 and RTX PRO 6000, which run the same "
        "FlashAttention 2, it takes 1.1 to 4 times as long there"
    )


def _compression(terms: StepTerms) -> list[str]:
    compression, layers = terms.compression, terms.model.num_layers
    if compression == KvCompression():
        return []
    said = ["kv_compression: quality is not simulated, and answers keep their lengths"]
    if compression.num_owners(layers) < layers:
        said.append(
            "kv_compression.owning_layers: shared KV takes less memory and is read by every layer as before, since it "
            "does not stay in L2 from one layer to the next; the projections that sharing layers save are still priced"
        )
    if compression.layer_keep != (1.0, 1.0, 1.0):
        said.append(
            "kv_compression.layer_keep: decode attention reads what is kept; prefill and projections are priced in full"
        )
    if compression.older_dtype != "bfloat16":
        said.append(_cold_reads(terms))
    if compression.older_kept not in (0, 1):
        said.append(
            "kv_compression.keep_ratio: the choice of tokens is not priced, and prefill attends to all of them"
        )
    return said


def _cold_reads(terms: StepTerms) -> str:
    dtype = terms.compression.older_dtype
    if terms.older_kv_dtype == terms.decode_kv_dtype:
        return (
            f"kv_compression.cold_dtype {dtype}: cold tokens take less memory, but attention reads them as slowly as "
            "hot ones: Llama-70B served on Hopper shows no gain of 8-bit KV"
        )
    measured = "fp8 kernel, with the bytes of the scales" if dtype == "int8" else "measured fp8 kernel"
    return (
        f"kv_compression.cold_dtype {dtype}: cold tokens are read at the price of the {measured}, which contains their "
        "dequantisation; hot and cold are taken to be read by one kernel, which was not measured"
    )


def _experts(terms: StepTerms, weight_dtype: str) -> list[str]:
    own = terms.model.expert_weight_dtype
    said: list[str] = []
    if terms.model.moe is None:
        return said
    if own is not None and weight_dtype not in ("auto", own):
        said.append(
            f"hardware.weight_dtype {weight_dtype}: the experts of {terms.model.name} stay {own}, as in the "
            f"checkpoint: an engine does not quantise them again"
        )
    if len(terms.expert_kernels) > 1:
        said.append(
            f"hardware.weight_dtype {weight_dtype}: experts are priced by the fastest of the measured kernels, "
            f"{' and '.join(terms.expert_kernels)}"
        )
    return said


def _slower(terms: StepTerms) -> str | None:
    """Say where the layers take clearly longer than with the weights in 16 bits."""
    plain = terms.with_plain_weights()
    if plain is None:
        return None
    tokens = np.array(_TOKENS)
    ratio = total(terms.layers(tokens)) / total(plain.layers(tokens))
    slow = tokens[ratio > _CLEARLY]
    if not slow.size:
        return None
    worst = int(ratio.argmax())
    return (
        f"hardware.weight_dtype {terms.weight_dtype}: slower than 16-bit weights where the tokens of a step are "
        f"{', '.join(map(str, slow))} (layers take {ratio[worst]:.2f} times as long at {_TOKENS[worst]}): so are the "
        f"measured kernels, whose times contain the quantisation of activations"
    )
