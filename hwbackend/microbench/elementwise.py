"""The small kernels of a layer: norms, rotary embedding, KV write, activation; alone, and as a layer's chain.

The chain is what the price list calls elementwise: `KERNELS` kernels a layer whose bytes per token are those of
`sim.cost.terms`, so that its launch and bandwidth can be fitted to sums of just these kernels.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hwbackend.device import Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import FLOAT_BYTES, Axes, filled, number, too_large
from hwbackend.microbench.gemm import array_dtype

KERNELS: Final = {"rms_norm": 1, "rope": 1, "append_kv": 1, "silu_mul": 1, "layer": 5}
"""How many kernels of the price list an op stands for: a layer has two norms."""
_EPS: Final = 1e-5
_THETA: Final = 10_000.0


class Elementwise:
    """`op` is one of KERNELS; a norm takes its residual addition with it."""

    name = "elementwise"
    axes = ("op", "dtype", "tokens", "hidden", "heads", "kv_heads", "head_dim", "inter")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(device, 8 * self.work(axes).num_bytes)

    def work(self, axes: Axes) -> Work:
        heads, kv_heads, dim = (number(axes, axis) for axis in ("heads", "kv_heads", "head_dim"))
        values = {
            "rms_norm": 2 * number(axes, "hidden"),
            "rope": (heads + kv_heads) * dim,
            "append_kv": 2 * kv_heads * dim,
            "silu_mul": 3 * number(axes, "inter"),
        }
        values["layer"] = sum(values.values()) + values["rms_norm"]
        return Work(num_bytes=float(number(axes, "tokens") * values[str(axes["op"])] * _size(axes)))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        ops, tokens, hidden = device.ops, number(axes, "tokens"), number(axes, "hidden")
        heads, kv_heads, dim = (number(axes, axis) for axis in ("heads", "kv_heads", "head_dim"))
        dtype = array_dtype(str(axes["dtype"]))
        x, residual, weight = (
            filled(device, shape, dtype) for shape in ((tokens, hidden),) * 2 + ((hidden,),)
        )
        q, k = filled(device, (tokens, heads, dim), dtype), filled(device, (tokens, kv_heads, dim), dtype)
        gate_up = filled(device, (tokens, 2 * number(axes, "inter")), dtype)
        pool = filled(device, (2, -(-tokens // 16), 16, kv_heads, dim), dtype)
        positions = device.to_device(np.arange(tokens, dtype=np.int64))

        def norm() -> None:
            ops.rms_norm(device.xp.add(x, residual), weight, _EPS)

        steps: dict[str, Call] = {
            "rms_norm": norm,
            "rope": lambda: ops.rope(q, k, positions, _THETA),
            "append_kv": lambda: ops.append_kv(pool, k, k, positions),
            "silu_mul": lambda: ops.silu_mul(gate_up),
        }
        if axes["op"] != "layer":
            return Prepared((steps[str(axes["op"])],))

        def layer() -> None:
            for call in (norm, steps["rope"], steps["append_kv"], norm, steps["silu_mul"]):
                call()

        return Prepared((layer,))


def _size(axes: Axes) -> int:
    return FLOAT_BYTES[str(axes["dtype"])]
