"""Results of a device that follows a known law, as a calibration would have measured them."""

import numpy as np

from calibration.collection import read_collection
from calibration.measurements import write_collection
from calibration.points import powers
from hwbackend.harness import Measurement, Summary
from hwbackend.microbench.all import BENCHMARKS
from hwbackend.microbench.bench import Result

PEAK, MEMORY = 1e11, 2e10
HEADS = {"heads": 8, "kv_heads": 4, "head_dim": 64}


def result(benchmark, seconds, **axes):
    summary = Summary(9, seconds, seconds, seconds, 0.95, 1, "noise", False, 0.0)
    return Result(benchmark, axes, BENCHMARKS[benchmark].work(axes), Measurement((seconds,), summary))


def law(noise=0.0, slower=1.0):
    """A CPU that follows rooflines, with 20 us for each call into its library."""
    random = np.random.default_rng(0)

    def seconds(work, rate=PEAK, width=MEMORY, calls=1):
        exact = 2e-5 * calls + max(work.flops / rate, work.num_bytes / width)
        return slower * exact * float(np.exp(noise * random.standard_normal()))

    def add(benchmark, axes, **law):
        return result(benchmark, seconds(BENCHMARKS[benchmark].work(axes), **law), **axes)

    out = []
    for n, k in ((1024, 512), (512, 512), (2816, 512), (512, 1408), (8192, 512)):
        out += [add("gemm", {"dtype": "float32", "m": m, "n": n, "k": k}) for m in powers(512)]
    attention = {"kv_dtype": "float32", "block_size": 16, **HEADS}
    for isl in powers(512, 16):
        for past in (0, 64, 256, 1024):
            out.append(
                add("prefill_attention", {**attention, "isl": isl, "past_kv": past}, rate=4e10, width=1e12)
            )
    for batch in powers(32):
        for kv_len in powers(2048, 16):
            axes = {**attention, "batch": batch, "kv_len": kv_len, "layout": "paged", "lengths": "uniform"}
            out.append(add("decode_attention", axes, rate=1e12, width=5e9))
            if batch >= 4:
                out.append(add("decode_attention", {**axes, "lengths": "mixed"}, rate=1e12, width=5e9))
    for tokens in powers(512):
        axes = {"op": "layer", "dtype": "float32", "tokens": tokens, "hidden": 512, "inter": 1408, **HEADS}
        out.append(add("elementwise", axes, width=1e10, calls=5))
    size = 64 << 20
    out.append(result("device_memory", 2 * size / MEMORY, op="copy", num_bytes=size))
    out.append(result("transfer", size / 1e10, direction="load", num_bytes=size, memory="pinned"))
    return out


def collection(folder, results, device):
    folder.mkdir()
    write_collection(folder, results, device.identity, "a law", "law", 16)
    return read_collection(folder)
