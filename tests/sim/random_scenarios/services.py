"""Services of random scenarios, at prices in whole milliseconds or at those of a compiled cost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache

from hypothesis import strategies as st

from sim.scenario.reading import load_scenario
from sim.scenario.sections import Scenario
from sim.service import Service, build_service
from tests.sim.doubles import AffineCost


@dataclass(frozen=True)
class Cost(AffineCost):
    """Prices in whole milliseconds or so: ends of steps, arrivals and transfers meet at one instant."""

    extrapolated: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


COSTS = st.one_of(
    st.none(),  # the compiled one
    st.builds(
        Cost,
        base_ns=st.sampled_from([1_000_000, 1_000_000, 500_000, 400_000]),
        per_seq_ns=st.sampled_from([0, 0, 100_000, 7]),
        per_context_ns=st.sampled_from([0, 0, 0, 1000]),
        per_window_ns=st.sampled_from([0, 0, 500]),
        per_prefill_token_ns=st.sampled_from([0, 0, 10_000, 100_000]),
        per_prefill_context_ns=st.sampled_from([0, 1000]),
        sliding_window=st.sampled_from([None, None, None, 24]),
        step_bytes=st.sampled_from([0, 1 << 20, 1 << 24]),
        bytes_per_context=st.sampled_from([0, 1 << 15]),
        compute_s=st.sampled_from([0.0, 1e-3]),
        hbm_bytes_per_s=st.sampled_from([1e10, 3e12]),
    ),
)
"""None where the scenario's own is to be compiled."""


@lru_cache(maxsize=256)
def _built(parts: str) -> Service:
    engine, compression = json.loads(parts)
    return build_service(
        load_scenario(
            {
                "model": "llama-3.1-8b",
                "hardware": {"gpu": "h100_sxm"},
                "engine": engine,
                "kv_compression": compression,
                "workload": {"input_tokens": 1, "output_tokens": 1, "max_concurrency": 1, "num_requests": 1},
            }
        )
    )


def service_of(scenario: Scenario, cost: Cost | None) -> Service:
    """A service of its own for each run where a cost is compiled: it remembers what it was asked."""
    if cost is None:
        return build_service(scenario)
    engine = scenario.engine.model_dump(mode="json", exclude={"enable_prefix_caching", "cache_at_start"})
    parts = json.dumps([engine, scenario.kv_compression.model_dump(mode="json")])
    return replace(_built(parts), cost=cost)
