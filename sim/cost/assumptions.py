"""What the prices of a service assume where a user would expect something else: one line each, with why."""

from __future__ import annotations

import numpy as np

from sim.cost.terms import StepTerms, total

_TOKENS = (1, 4, 16, 64, 256, 1024)
"""Steps at which quantised layers are compared with 16-bit ones."""
_CLEARLY = 1.02


def assumptions(terms: StepTerms, weight_dtype: str, *, enforce_eager: bool) -> tuple[str, ...]:
    """Name the assumptions behind the prices of `terms`; `weight_dtype` is as it was asked for."""
    said = [_kv_cache(terms), *_experts(terms, weight_dtype), _slower(terms)]
    if enforce_eager:
        said.append(
            "engine.enforce_eager: each operation of a layer costs the host "
            f"{1e6 * terms.call_s:.0f} us, as the engine's all-reduce does without a graph; no eager step was measured"
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
