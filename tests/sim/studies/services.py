"""Services for tests of studies: real engines and routers on a cost with a closed form, without a profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from sim.batching.decision import EngineLimits
from sim.scenario.sections import Scenario
from sim.service import Service
from tests.sim.doubles import AffineCost


@dataclass(frozen=True)
class Cost(AffineCost):
    extrapolated: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def service(cost: AffineCost, scenario: Scenario, usable_blocks: int = 100_000) -> Service:
    engine = scenario.engine
    return Service(
        model=SimpleNamespace(name="double"),
        profile=SimpleNamespace(name="double", engine="none", content_hash="0"),
        capacity=SimpleNamespace(
            usable_blocks=usable_blocks, num_gpu_blocks=usable_blocks + 1, block_bytes=0, footprint=None
        ),
        cost=cost,
        limits=EngineLimits(engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size),
        max_model_len=engine.max_model_len or 1 << 40,
    )


def scenario(**sections) -> dict:
    """A scenario of short requests on one double; sections replace or extend its own."""
    base = {
        "model": "double",
        "hardware": {"gpu": "double"},
        "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 256},
        "workload": {
            "input_tokens": {"uniform": [20, 200]},
            "output_tokens": {"uniform": [4, 30]},
            "request_rate": 20.0,
            "num_requests": 400,
        },
        "seed": 3,
    }
    return {
        key: {**base.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in {**base, **sections}.items()
    }
