"""GEMM over model shapes: out[m, n] = in[m, k] x weight[k, n], with weights that no cache holds."""

from __future__ import annotations

from hwbackend.device import Array, Call, Device
from hwbackend.harness import Prepared, Work
from hwbackend.microbench.bench import FLOAT_BYTES, Axes, filled, number, too_large, turns

_EIGHT_BIT = ("fp8", "int8")


class Gemm:
    """m tokens, n output features, k input features. `dtype` is that of weights and activations."""

    name = "gemm"
    axes = ("dtype", "m", "n", "k")

    def skipped(self, device: Device, axes: Axes) -> str | None:
        if axes["dtype"] in _EIGHT_BIT and device.kind == "cpu":
            return "NumPy multiplies 8-bit integers without BLAS, which no engine would use"
        if axes["dtype"] in _EIGHT_BIT:
            return "the operations of this device have no 8-bit product"
        if device.kind == "cpu" and axes["dtype"] != "float32":
            return "NumPy multiplies 16-bit floats one by one, without BLAS"
        weights = number(axes, "n") * number(axes, "k") * FLOAT_BYTES[str(axes["dtype"])]
        return too_large(device, turns(device, weights) * weights)

    def work(self, axes: Axes) -> Work:
        m, n, k = (float(number(axes, axis)) for axis in "mnk")
        size = FLOAT_BYTES.get(str(axes["dtype"]), 1)
        return Work(num_bytes=size * (n * k + m * (n + k)), flops=2.0 * m * n * k)

    def prepare(self, device: Device, axes: Axes) -> Prepared:
        m, n, k = (number(axes, axis) for axis in "mnk")
        dtype = array_dtype(str(axes["dtype"]))
        x, matmul = filled(device, (m, k), dtype), device.ops.matmul
        count = turns(device, n * k * FLOAT_BYTES[dtype])

        def product(weight: Array) -> Call:
            return lambda: matmul(x, weight)

        return Prepared(tuple(product(filled(device, (k, n), dtype)) for _ in range(count)))


def array_dtype(dtype: str) -> str:
    """Return the dtype of arrays: CuPy has no bfloat16, and float16 runs at its rate."""
    return "float16" if dtype == "bfloat16" else dtype
