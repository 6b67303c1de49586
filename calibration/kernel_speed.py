"""How fast attention is beside what the device can: its own copies for decode, its own products for prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hwbackend.device import Device
from hwbackend.harness import Rules
from hwbackend.microbench.all import BENCHMARKS
from hwbackend.microbench.bench import Axes, run_point
from workloads.errors import ConfigError

_SIZES: Final = {
    # batch and context of decode, chunk of prefill, square products, copied bytes
    "cuda": (64, 4096, 2048, 4096, 1 << 30),
    "cpu": (8, 512, 256, 512, 64 << 20),
}


@dataclass(frozen=True, slots=True)
class KernelSpeed:
    """Bandwidths [bytes/s] and arithmetic rates [FLOP/s] as measured, medians."""

    copy_bytes_per_s: float
    decode_bytes_per_s: float
    gemm_flops_per_s: float
    prefill_flops_per_s: float

    @property
    def decode_of_copy(self) -> float:
        return self.decode_bytes_per_s / self.copy_bytes_per_s

    @property
    def prefill_of_gemm(self) -> float:
        return self.prefill_flops_per_s / self.gemm_flops_per_s


def kernel_speed(device: Device, budget_s: float) -> KernelSpeed:
    """Measure one point of each, of 8 KV heads of 128 (32 query heads), blocks of 16."""
    batch, context, chunk, size, num_bytes = _SIZES[device.kind]
    dtype = device.ops.dtype
    layout: Axes = {"kv_dtype": dtype, "heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}
    rules = Rules(budget_s=max(budget_s / 4, 0.05))

    def rate(name: str, axes: Axes, of: str) -> float:
        result = run_point(device, BENCHMARKS[name], axes, rules)
        if result.measurement is None:
            raise ConfigError(f"{name} does not run here: {result.skipped}")
        return getattr(result.work, of) / result.measurement.summary.median_s

    decode = {**layout, "batch": batch, "kv_len": context, "layout": "paged", "lengths": "uniform"}
    return KernelSpeed(
        copy_bytes_per_s=rate("device_memory", {"op": "copy", "num_bytes": num_bytes}, "num_bytes"),
        decode_bytes_per_s=rate("decode_attention", decode, "num_bytes"),
        gemm_flops_per_s=rate("gemm", {"dtype": dtype, "m": size, "n": size, "k": size}, "flops"),
        prefill_flops_per_s=rate("prefill_attention", {**layout, "isl": chunk, "past_kv": 0}, "flops"),
    )
