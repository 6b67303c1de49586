"""GEMM over model shapes: out[m, n] = in[m, k] x weight[k, n], with weights that no cache holds."""

from __future__ import annotations

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import Axes, dtype_of, filled, number, too_large, turns, value_bytes


class Gemm:
    """m tokens, n output features, k input features. `dtype` is that of weights and activations.

    int8 gives int32 sums: tensor cores take it at the rate of fp8, for which CuPy has no product.
    """

    name = "gemm"
    axes = ("dtype", "m", "n", "k")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        dtype = dtype_of(axes)
        if dtype == "int8" and device.kind == "cpu":
            return "NumPy multiplies 8-bit integers without BLAS, which no engine would use"
        if dtype not in ("int8", device.ops.dtype):
            return f"the operations opened on this device multiply {device.ops.dtype}, not {dtype}"
        weights = number(axes, "n") * number(axes, "k") * value_bytes(axes)
        return too_large(device, turns(device, weights) * weights)

    def work(self, axes: Axes) -> Work:
        m, n, k = (float(number(axes, axis)) for axis in "mnk")
        size = value_bytes(axes)
        return Work(num_bytes=size * (n * k + m * (n + k)), flops=2.0 * m * n * k)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        m, n, k = (number(axes, axis) for axis in "mnk")
        dtype = dtype_of(axes)
        x, count = filled(device, (m, k), dtype), turns(device, n * k * value_bytes(axes))
        shape = (n, k) if dtype == "int8" else (k, n)
        matmul = device.ops.matmul_8bit if dtype == "int8" else device.ops.matmul

        def product(weight: Array) -> Call:
            return lambda: matmul(x, weight)

        return Prepared(tuple(product(filled(device, shape, dtype)) for _ in range(count)))
