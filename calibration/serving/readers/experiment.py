"""One experiment of the rig behind three data sets: vLLM 0.15.1, loaded by inference-perf with `shared_prefix`.

What holds for all of its experiments: the engine's defaults (prefix cache, chunked prefill, async scheduling: on
since 0.14 where nothing forbids it), 128 seats and sequences of 4,096 tokens at most where it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibration.serving.measured_run import Label, MeasuredRun, Part
from calibration.serving.readers.shared_prefix import SharedPrefixLoad
from sim.model import load_model
from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from workloads.build import Workload
from workloads.errors import InputError

GPUS: Final = {"H100": "h100_sxm", "H100-SXM-80GB": "h100_sxm", "A100-80GB": "a100_sxm", "L40S": "l40s"}
"""Shipped profiles by the source's names of GPUs."""
PRECISIONS: Final = {"FP16": "auto", "FP16/BF16": "auto", "FP8": "fp8"}
_SEED: Final = 0  # of the arrivals that are drawn


@dataclass(frozen=True)
class Experiment:
    """What was set before the run.

    num_gpu_blocks   KV blocks of a GPU from the engine's log; None where it is not known
    recorded         whether times of arrival are known, so that none are drawn
    caveats          what is not known about it, one line each
    """

    name: str
    data: str
    model: str
    gpu: str
    tensor_parallel_size: int
    precision: str
    workload: str
    load: SharedPrefixLoad
    max_num_batched_tokens: int
    max_num_seqs: int = 128
    max_model_len: int = 4096
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks: int | None = None
    caveats: tuple[str, ...] = ()

    def scenario(self) -> Scenario:
        """The run as its user would write it down."""
        load = self.load
        engine: dict[str, Any] = {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_prefix_caching": True,
            "async_scheduling": True,
        }
        if self.num_gpu_blocks is not None:
            engine["num_gpu_blocks_override"] = self.num_gpu_blocks
        return load_scenario(
            {
                "model": model_of(self.model),
                "hardware": {
                    "gpu": self.gpu,
                    "tensor_parallel_size": self.tensor_parallel_size,
                    "weight_dtype": self.precision,
                },
                "engine": engine,
                "workload": {
                    "input_tokens": load.input_tokens,
                    "output_tokens": load.output_tokens,
                    "request_rate": max(stage.rate_rps for stage in load.stages),
                    "num_requests": load.requests,
                },
            }
        )

    def stages(self) -> tuple[Part, ...]:
        """The parts of the run, nothing of them measured."""
        return tuple(
            Part({}, mask, {"stage": number, "request_rate": stage.rate_rps})
            for number, (stage, mask) in enumerate(zip(self.load.stages, self.load.masks(), strict=True))
        )

    def run(self, parts: Sequence[Part] = (), workload: Workload | None = None) -> MeasuredRun:
        """The run with what was measured; without a recorded workload one whose times are drawn."""
        labels: dict[str, Label] = {
            "data": self.data,
            "engine": "vllm",
            "system": self.gpu,
            "model": load_model(model_of(self.model)).name,
            "tensor_parallel_size": self.tensor_parallel_size,
            "precision": "fp8" if self.precision == "fp8" else "bfloat16",
            "input_tokens": self.load.input_tokens,
            "output_tokens": self.load.output_tokens,
            "workload": self.workload,
        }
        return MeasuredRun(
            name=self.name,
            curve=self.name,
            labels=labels,
            scenario=self.scenario(),
            parts=tuple(parts),
            workload=workload or self.load.draw(_SEED),
            caveats=self.caveats,
        )


def model_of(name: str) -> str:
    """Return the model of a checkpoint's name; how it was quantised is a column of its own."""
    return name.removesuffix("-FP8-dynamic")


def gpu_of(name: str, where: str) -> str:
    """Return the shipped profile of the source's GPU; raises InputError where there is none."""
    if name not in GPUS:
        raise InputError(f"{where}: no profile for {name!r}; known are {', '.join(GPUS)}")
    return GPUS[name]


def precision_of(name: str, where: str) -> str:
    """Return `hardware.weight_dtype` of the source's precision; raises InputError where it is unknown."""
    if name not in PRECISIONS:
        raise InputError(f"{where}: no precision {name!r}; known are {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
