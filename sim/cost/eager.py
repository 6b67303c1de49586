"""Steps without a CUDA graph: the host launches every kernel, and the GPU waits where it cannot keep up.

    step = max(gpu, operations x time of a call + host's own work) + overhead       async scheduling
    step = max(gpu, operations x time of a call) + host's own work + overhead       without it

Under `enforce_eager` that is every step; above the largest captured size it is every mixed one. Launches run
ahead of the GPU, so a long step (a large prefill) hides them.

Evidence for the time of a call (`host.call_s` of a profile): the engine's own all-reduce, timed back to back
without and with a graph (`allreduce`, `vllm_eager` and `vllm_graph`). At 16 KiB or less the kernel takes 4 to
7 us in a graph between two GPUs, and a call outside one 20.0 to 21.1 us on the B200, H200, H100 and RTX PRO
6000 machines (vLLM 0.24), 44 us on the A100 one (vLLM 0.14), 57 us on the L40S one (vLLM 0.22): that is the
host (Python, dispatch, allocation, launch), and it is that machine's host, not the GPU's property. FP8
products timed without a graph, two launches each, take 55 us and more on H100.

Inference: that other operations cost the host as much as this one; how many a layer has, counted below by the
model code of vLLM; that compiled code above the captured sizes launches no faster. No measured step tells here.
Vidur's operator tables do not: an addition takes 1 us there, so they time kernels and not the host. A published
pair, Llama-3.1-8B on H100 at batch 1, is 8.4 ms eager and 5.1 ms with graphs; it was not fitted to.
"""

from __future__ import annotations

from typing import Final

from sim.model import ModelSpec

# Norm, QKV, rotary embedding, the attention operation with KV write and kernel inside (3), output projection,
# norm, gate and up, activation, down.
_CALLS_DENSE: Final = 11
# Router, top-k, alignment of blocks, two expert products, activation, quantisation or zeroing, sum: 8 for 3.
_CALLS_MOE: Final = 16
_CALLS_QK_NORM: Final = 2
_CALLS_ALL_REDUCE: Final = 2


def calls_per_layer(model: ModelSpec, tensor_parallel_size: int, weight_dtype: str) -> int:
    """Count the operations that the host starts for one layer; quantised products quantise their input first."""
    moe = model.moe is not None
    calls = _CALLS_MOE if moe else _CALLS_DENSE
    calls += _CALLS_QK_NORM if model.qk_norm else 0
    calls += _CALLS_ALL_REDUCE if tensor_parallel_size > 1 else 0
    if weight_dtype != "bfloat16":
        calls += 2 if moe else 4
    return calls
