"""Steps without a CUDA graph: the host launches every kernel, and the GPU waits where it cannot keep up.

    step = max(gpu, operations x time of a call + host's own work) + overhead       async scheduling
    step = max(gpu, operations x time of a call) + host's own work + overhead       without it

Under `enforce_eager` that is every step; otherwise the steps above the largest captured size, which run compiled
code. Launches run ahead of the GPU, so a long step (a large prefill) hides them.

Evidence for the time of a call (`host.call_s` of a profile): the engine's own all-reduce, timed back to back
without and with a graph (`allreduce`, `vllm_eager` and `vllm_graph`). At 16 KiB or less the kernel takes 4 to
7 us in a graph between two GPUs, and a call outside one 20.0 to 21.1 us on the B200, H200, H100 and RTX PRO
6000 machines (vLLM 0.24), 44 us on the A100 one (vLLM 0.14), 57 us on the L40S one (vLLM 0.22): that is the
host (Python, dispatch, allocation, launch), and it is that machine's host, not the GPU's property. FP8
products timed without a graph, two launches each, take 55 us and more on H100.

Inference: that other operations cost the host as much as this one; how many a layer has, counted below by the
model code of vLLM; that generated code (all but attention, fused experts and all-reduce, where the engine compiles)
takes half a call for each. No step measured here tells. Vidur's operator tables do not either: an addition takes
1 us there, so they time kernels and not the host. A published pair, Llama-3.1-8B on H100 at batch 1, is 8.4 ms
eager and 5.1 ms with graphs (these prices: 8.0 and 6.4); nothing was fitted to it.
"""

from __future__ import annotations

from typing import Final

from sim.model import ModelSpec

_ATTENTION: Final = 3  # the operation itself, its KV write, its kernel
_ROUND_ATTENTION: Final = 5  # norm, QKV, rotary embedding, output projection, norm
_QK_NORM: Final = 2
_MLP: Final = 3  # gate and up, activation, down
_EXPERTS: Final = 7  # top-k, alignment of blocks, two products, activation, zeroing or quantisation, sum
_ROUTER: Final = 1
_ALL_REDUCE: Final = 2
_GENERATED: Final = 0.5


def calls_per_layer(
    model: ModelSpec, tensor_parallel_size: int, weight_dtype: str, *, compiled: bool = False
) -> float:
    """Count the operations that the host starts for one layer, in calls of the eager engine.

    Quantised products quantise their input first. `compiled` is for an engine that captures graphs, in steps
    too large for them.
    """
    moe = model.moe is not None
    whole = _ATTENTION + (_EXPERTS if moe else 0) + (_ALL_REDUCE if tensor_parallel_size > 1 else 0)
    generated = _ROUND_ATTENTION + (_ROUTER if moe else _MLP) + (_QK_NORM if model.qk_norm else 0)
    if weight_dtype not in ("bfloat16", "float32"):
        generated += 2 if moe else 4
    return whole + generated * (_GENERATED if compiled else 1.0)
