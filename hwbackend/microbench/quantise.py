"""Quantising KV to 8-bit integers with a scale per token and head, and back."""

from __future__ import annotations

from hwbackend.device import Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, dtype_of, filled, number, too_large, value_bytes

_SCALE_BYTES = 4


class Quantise:
    """`op` is quantise or dequantise, of `tokens` keys (or values) of one layer."""

    name = "quantise"
    axes = ("op", "dtype", "tokens", "kv_heads", "head_dim")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        return too_large(device, 4 * self.work(axes).num_bytes)

    def work(self, axes: Axes) -> Work:
        rows = number(axes, "tokens") * number(axes, "kv_heads")
        wide = value_bytes(axes) + 1
        return Work(num_bytes=float(rows * (number(axes, "head_dim") * wide + _SCALE_BYTES)))

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        shape = tuple(number(axes, axis) for axis in ("tokens", "kv_heads", "head_dim"))
        ops, x = device.ops, filled(device, shape, dtype_of(axes))
        if axes["op"] == "quantise":
            return Prepared((lambda: ops.quantise(x),))
        packed, scales = ops.quantise(x)
        return Prepared((lambda: ops.dequantise(packed, scales),))
