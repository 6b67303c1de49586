"""Runs whose measurements are simulations by a known profile: short, so that a fit takes seconds."""

from __future__ import annotations

from dataclasses import replace

from calibration.serving.fit_overheads import ASKED
from calibration.serving.measured_run import MeasuredRun, Part
from calibration.serving.predict import predict
from sim.profile import HostOverhead, load_profile
from sim.scenario.reading import load_scenario
from sim.simulation import build_load

GPUS = {"llama-3.1-8b": 1, "llama-3.1-70b": 4, "gpt-oss-120b": 1}
BARE = load_profile("h100_sxm").model_copy(
    update={"host": HostOverhead(base_s=0.0, call_s=0.0, source="none"), "served": None, "errors": ()}
)
"""H100 with kernels alone."""


def offered(model, tokens, seats):
    """A closed loop of a few equal requests, drawn once; nothing measured."""
    scenario = load_scenario(
        {
            "model": model,
            "hardware": {"gpu": "h100_sxm", "tensor_parallel_size": GPUS[model]},
            "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 8192},
            "workload": {
                "input_tokens": tokens,
                "output_tokens": 16,
                "max_concurrency": seats,
                "num_requests": max(seats, 2),
            },
        }
    )
    curve = f"{model} {tokens}"
    return MeasuredRun(f"{curve} x {seats}", curve, {"model": model}, scenario, (), build_load(scenario))


def measured(runs, profile, metrics=tuple(ASKED)):
    """What a server with this profile would have measured."""
    said = [predict(run, profile).parts[0] for run in runs]
    return [
        replace(run, parts=(Part({metric: one[metric] for metric in metrics}),))
        for run, one in zip(runs, said, strict=True)
    ]


def remeasured(run, apart=None, **factors):
    """The run with these metrics so many times as large."""
    (part,) = run.parts
    values = {name: value * factors.get(name, 1.0) for name, value in part.measured.items()}
    return replace(run, parts=(replace(part, measured=values, apart=apart),))
