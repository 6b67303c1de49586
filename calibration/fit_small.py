"""Curves with few rows: all-reduce and elementwise kernels."""

from __future__ import annotations

import numpy as np

from calibration.tables import Table
from sim.curves.comm import CommCurve
from sim.curves.elementwise import ElementwiseCurve
from sim.profile import Device

STREAMING = 0.95
"""Share of the vendor's bandwidth that streaming kernels reach: residual add at 2,048 tokens and more on A100
0.88 and H100 0.98 to 1.01 (Vidur's tables), SiLU-and-multiply at 2,048 tokens on RTX 4090 1.04 and RTX PRO 6000
1.04 (LLMServingSim's tables); older unfused norms reach 0.3 (Vidur's), current fused ones are near the others."""


def fit_all_reduce(engine: Table, nccl: Table | None) -> CommCurve | None:
    """Keep the measured sizes of the engine's own dispatch; NCCL where the engine was not measured."""
    graph = engine.only(impl="vllm_graph")
    times: dict[int, dict[float, float]] = {}
    if nccl is not None:
        for gpus, size, seconds in _rows(nccl.only(op="all_reduce", dtype="half")):
            times.setdefault(gpus, {})[size] = seconds
    for gpus in np.unique(graph["gpus"]):
        times[int(gpus)] = {}
    for gpus, size, seconds in _rows(graph):
        times[gpus][size] = seconds
    if not times:
        return None
    sizes = [size for row in times.values() for size in row]
    return CommCurve(
        source="allreduce rows of vllm_graph (the engine's dispatch inside a CUDA graph: its custom kernel up to "
        "its limit, NCCL beyond); nccl all_reduce rows for GPU counts that the engine lacks",
        fitted={"message_bytes": (min(sizes), max(sizes))},
        message_bytes={gpus: tuple(sorted(row)) for gpus, row in sorted(times.items())},
        time_s={gpus: tuple(row[size] for size in sorted(row)) for gpus, row in sorted(times.items())},
    )


def _rows(table: Table) -> list[tuple[int, float, float]]:
    sizes = table.number("message_bytes")
    return [(int(g), float(s), float(t)) for g, s, t in zip(table["gpus"], sizes, table.time_s, strict=True)]


def fit_elementwise(gemm: Table, device: Device) -> ElementwiseCurve:
    """Launch from the smallest GEMMs of the same device, bandwidth by STREAMING."""
    smallest = (gemm.number("m") == 1) & (gemm.number("n") <= 256) & (gemm.number("k") <= 256)
    return ElementwiseCurve(
        source="launch: median of bfloat16 GEMMs of 1 token and at most 256 x 256 on this device; bandwidth: "
        f"{STREAMING:g} of the vendor's, as streaming kernels reach on four other devices",
        launch_s=float(np.median(gemm.where(smallest).time_s)),
        bytes_per_s=STREAMING * device.hbm_bytes_per_s,
    )
