"""What to measure, most informative first: the shapes of the models to be simulated, in rounds of refinement.

Each axis is a ladder; its ends and its middle belong to round 0, then every round halves the gaps. A point belongs
to the latest round among its axes. Round 0 is enough for a fit, later ones bend its curves; beside the terms of the
price list stand the benchmarks that answer other questions (contention, blocks, allocation, ...), from round 1 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from hwbackend.device import Device
from hwbackend.microbench.bench import Axes
from sim.model import ModelSpec

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the ladders reach; steps beyond are extrapolated, and the simulator says so."""

    max_tokens: int
    """Of a step."""
    max_seqs: int
    max_context: int
    block_size: int = 16

    @classmethod
    def of(cls, device: Device) -> Extent:
        """Return what a server of that kind usually needs."""
        return cls(512, 32, 2048) if device.kind == "cpu" else cls(8192, 256, 16_384)


@dataclass(frozen=True)
class Point:
    """A point of a benchmark, and the round in which it is due."""

    benchmark: str
    axes: dict[str, int | str]
    due: int


def plan(device: Device, models: Sequence[ModelSpec], extent: Extent) -> list[Point]:
    """All points worth measuring, in order; those that models share stand once."""
    points: dict[tuple[str, tuple[tuple[str, int | str], ...]], Point] = {}
    candidates = [*(point for model in models for point in _model(device, model, extent)), *_machine(device)]
    for point in candidates:
        key = (point.benchmark, tuple(sorted(point.axes.items())))
        if key not in points or point.due < points[key].due:
            points[key] = point
    return sorted(points.values(), key=lambda point: point.due)


def powers(largest: int, least: int = 1) -> list[int]:
    """Powers of two from `least` below `largest`, and `largest` itself."""
    steps = []
    value = least
    while value < largest:
        steps.append(value)
        value *= 2
    return [*steps, largest]


def rounds(ladder: Sequence[int]) -> dict[int, int]:
    """Round of each rung: ends and middle first, then the middles of what is left between."""
    due = {ladder[0]: 0, ladder[-1]: 0}
    gaps, current = [(0, len(ladder) - 1)], 0
    while gaps:
        halves = []
        for low, high in gaps:
            middle = (low + high) // 2
            if low < middle < high:
                due.setdefault(ladder[middle], current)
                halves += [(low, middle), (middle, high)]
        gaps, current = halves, current + 1
    return due


def gemm_shapes(model: ModelSpec) -> dict[tuple[int, int], str]:
    """(n, k) of a model's products on one device, and whether rows are the step's tokens or its sequences."""
    hidden, dim = model.hidden_size, model.head_dim
    layers = [
        ((model.num_heads + 2 * model.num_kv_heads) * dim, hidden),
        (hidden, model.num_heads * dim),
        (2 * model.intermediate_size, hidden),
        (hidden, model.intermediate_size),
    ]
    return dict.fromkeys(layers, "tokens") | {(model.vocab_size, hidden): "sequences"}


def _model(device: Device, model: ModelSpec, extent: Extent) -> Iterator[Point]:
    dtype = device.ops.dtype
    layout: Axes = {"heads": model.num_heads, "kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    tokens, seqs = powers(extent.max_tokens), powers(extent.max_seqs)
    for (n, k), rows in gemm_shapes(model).items():
        ladder = tokens if rows == "tokens" else seqs
        yield from _grid("gemm", {"dtype": dtype, "n": n, "k": k}, {"m": ladder})
        yield from _grid("gemm", {"dtype": "int8", "n": n, "k": k}, {"m": ladder}, first=3)
    attention: Axes = {"kv_dtype": dtype, "block_size": extent.block_size, **layout}
    longest = min(extent.max_context, model.max_position_embeddings)
    new = powers(min(extent.max_tokens, longest), 16 if extent.max_tokens > 16 else 1)
    past = [0, *powers(longest // 2, 64 if longest > 128 else 1)]
    yield from _grid("prefill_attention", attention, {"isl": new, "past_kv": past})
    paged = {**attention, "layout": "paged", "lengths": "uniform"}
    contexts = {"batch": seqs, "kv_len": powers(longest, 16 if longest > 16 else 1)}
    yield from _grid("decode_attention", paged, contexts)
    yield from _grid("decode_attention", {**paged, "lengths": "mixed"}, contexts, first=1, last=1)
    yield from _grid("decode_attention", {**paged, "layout": "contiguous"}, contexts, first=2, last=2)
    for narrow in ("int8", "fp8"):
        yield from _grid("decode_attention", {**paged, "kv_dtype": narrow}, contexts, first=2)
    for size in (8, 32, 128):
        yield from _grid("decode_attention", {**paged, "block_size": size}, contexts, first=2, last=2)
    widths: Axes = {"hidden": model.hidden_size, "inter": model.intermediate_size, **layout}
    yield from _grid("elementwise", {"op": "layer", "dtype": dtype, **widths}, {"tokens": tokens})
    for op in ("rms_norm", "rope", "append_kv", "silu_mul"):
        yield from _grid("elementwise", {"op": op, "dtype": dtype, **widths}, {"tokens": tokens}, first=2)
    block: Axes = {"kv_dtype": dtype, "block_size": extent.block_size}
    block = {**block, "kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    for op in ("append", "copy", "copy_on_write", "gather", "scatter"):
        yield from _grid("kv_blocks", {"op": op, **block}, {"count": [1, 16, 256]}, first=2)
    heads: Axes = {"dtype": dtype, "kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    for op in ("quantise", "dequantise"):
        yield from _grid(
            "quantise", {"op": op, **heads}, {"tokens": tokens[:: max(1, len(tokens) // 3)]}, first=2
        )


def _machine(device: Device) -> Iterator[Point]:
    """What no model has a part in."""
    large = (64 if device.kind == "cpu" else 1024) * MIB
    link = [1 << 16, MIB, 16 * MIB, 64 * MIB if device.kind == "cpu" else 256 * MIB]
    for op in ("copy", "read", "write"):
        yield Point("device_memory", {"op": op, "num_bytes": large}, 0)
    for direction, memory in product(("load", "offload", "both"), ("pinned", "pageable")):
        fixed: Axes = {"direction": direction, "memory": memory}
        yield Point("transfer", {**fixed, "num_bytes": link[-1]}, 0 if memory == "pinned" else 1)
        yield from _grid("transfer", fixed, {"num_bytes": link}, first=2)
    for direction, what in product(("load", "offload"), ("copy", "kernel")):
        yield Point("contention", {"direction": direction, "num_bytes": link[-1], "measured": what}, 1)
    for op in ("call", "graph_capture", "graph_replay", "stream_switch"):
        yield Point("launch", {"op": op, "calls": 32}, 2)
    yield Point("first_launch", {"kernels": 5}, 2)
    for source in ("pool", "driver"):
        yield from _grid("allocation", {"source": source}, {"num_bytes": [4096, MIB, 64 * MIB]}, first=2)
    for overlap in ("no", "yes"):
        yield Point("weights", {"num_bytes": large, "overlap": overlap}, 2)
    gpus = max(2, device.num_devices)
    yield from _grid("all_reduce", {"gpus": gpus}, {"message_bytes": powers(16 * MIB, 8192)}, first=2)


def _grid(
    benchmark: str, fixed: Axes, ladders: dict[str, list[int]], *, first: int = 0, last: int | None = None
) -> Iterator[Point]:
    """Every combination of the ladders, due when its latest axis is; none before `first`, none after `last`."""
    due = {axis: rounds(ladder) for axis, ladder in ladders.items()}
    for values in product(*ladders.values()):
        latest = max(due[axis][value] for axis, value in zip(ladders, values, strict=True))
        when = first + latest
        if last is None or when <= last:
            yield Point(benchmark, {**fixed, **dict(zip(ladders, values, strict=True))}, when)
