"""A scenario as commented YAML, to start from: the comments are the descriptions of the fields themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from sim.scenario.sections import Scenario

WORKLOAD = """\
workload:
  # A shipped model of a real trace (azure-conv, azure-code, mooncake-conv, arxiv-summarization) or a trace file.
  trace: azure-conv
  # Requests per second; leave it out for the trace's own times.
  request_rate: 8.0
  num_requests: 2000
  # Instead of a trace, lengths in tokens, as a number or drawn:
  #   input_tokens: {uniform: [819, 1024]}
  #   output_tokens: {lognormal: {mean: 256, sigma: 0.8, low: 16, high: 2048}}
  # Instead of a rate, a closed loop:
  #   max_concurrency: 64
"""
CHOICES = {
    "policies.router": "least_loaded, power_of_two, prefix_affinity, round_robin, session_affinity",
    "policies.allocator": "paged, contiguous, arena, size_class, grow",
    "policies.eviction": "lru, lfu, lfu_perfect, lru_lfu, fifo, ttl, length_aware, belady",
    "policies.prefetch": "none, stride, attention_weighted, scheduled, oracle, session",
    "policies.batcher": "chunked, continuous, dynamic_chunked, length_grouped, prefix_first, static_batch",
}
STARTING_POINT: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware.gpu": "h200_sxm",
    "slo.ttft_ms": 1000,
    "slo.tpot_ms": 50,
}


def scenario_text(fields: Mapping[str, Any], remarks: Sequence[str] = ()) -> str:
    """Write a whole scenario with `fields` (by path) set over the defaults, every field explained."""
    values = {**STARTING_POINT, **fields}
    lines = [f"# NOTE: {remark}" for remark in remarks]
    for name, info in Scenario.model_fields.items():
        if lines:
            lines.append("")
        if name == "workload":
            lines += WORKLOAD.rstrip().split("\n")
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            lines.append(f"# {info.description}")
            lines.append(f"{name}:")
            lines += _section(name, info.annotation, values)
        else:
            lines += _field(name, info.description, values.get(name, info.default), "")
    return "\n".join(lines) + "\n"


def _section(section: str, model: type[BaseModel], values: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, info in model.model_fields.items():
        path = f"{section}.{name}"
        default = info.default.name if isinstance(info.default, BaseModel) else info.default  # type: ignore[attr-defined]
        description = info.description or ""
        if path in CHOICES:
            description += f" One of {CHOICES[path]}."
        if path == "hardware.profile":
            lines += [f"  # {description}", "  # profile: my_gpu.json"]
        else:
            lines += _field(name, description, values.get(path, default), "  ")
    return lines


def _field(name: str, description: str | None, value: Any, indent: str) -> list[str]:  # noqa: ANN401  anything that is YAML
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).replace("\n...", "").strip()
    return [f"{indent}# {description}", f"{indent}{name}: {text}"]
