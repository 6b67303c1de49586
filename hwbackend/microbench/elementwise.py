"""The small kernels of a layer: norms, rotary embedding, KV write, activation; alone, and as a layer's chain.

The chain is what the price list calls elementwise: `KERNELS` kernels a layer whose bytes per token are those of
`sim.cost.terms`, so that its launch and bandwidth can be fitted to sums of just these kernels.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hwbackend.device import Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, dtype_of, filled, number, too_large, value_bytes

KERNELS: Final = {"rms_norm": 1, "rope": 1, "append_kv": 1, "silu_mul": 1, "layer": 5}
"""How many kernels of the price list an op stands for: a layer has two norms."""
_EPS: Final = 1e-5
_THETA: Final = 10_000.0
_BLOCK: Final = 16


class Elementwise:
    """`op` is one of KERNELS; a norm takes its residual addition with it."""

    name = "elementwise"
    axes = ("op", "dtype", "tokens", "hidden", "heads", "kv_heads", "head_dim", "inter")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        if dtype_of(axes) == "bfloat16":
            return "bfloat16 lies in arrays of uint16 here, which residuals cannot be added to; float16 is as fast"
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
        return Work(num_bytes=float(number(axes, "tokens") * values[str(axes["op"])] * value_bytes(axes)))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        ops, tokens, hidden = device.ops, number(axes, "tokens"), number(axes, "hidden")
        heads, kv_heads, dim = (number(axes, axis) for axis in ("heads", "kv_heads", "head_dim"))
        dtype = dtype_of(axes)
        x, residual, weight = (
            filled(device, shape, dtype) for shape in ((tokens, hidden),) * 2 + ((hidden,),)
        )
        q, k = filled(device, (tokens, heads, dim), dtype), filled(device, (tokens, kv_heads, dim), dtype)
        gate_up = filled(device, (tokens, 2 * number(axes, "inter")), dtype)
        pool = ops.new_pool(-(-tokens // _BLOCK), _BLOCK, kv_heads, dim)
        positions = device.to_device(np.arange(tokens, dtype=np.int32))
        table = ops.rope_table(tokens, dim, _THETA)

        def norm() -> None:
            ops.rms_norm(device.xp.add(x, residual), weight, _EPS)

        steps: dict[str, Call] = {
            "rms_norm": norm,
            "rope": lambda: ops.rope(q, k, positions, table),
            "append_kv": lambda: ops.append_kv(pool, k, k, positions),
            "silu_mul": lambda: ops.silu_mul(gate_up),
        }
        if axes["op"] != "layer":
            return Prepared((steps[str(axes["op"])],))

        def layer() -> None:
            for call in (norm, steps["rope"], steps["append_kv"], norm, steps["silu_mul"]):
                call()

        return Prepared((layer,))
