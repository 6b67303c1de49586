"""Requests that an engine refuses whatever the load: how many, why, what would let them in, and what they spoil.

Refusal depends on the lengths of a request and the limits of the engine alone, not on the rate or the replicas; but
for that of tiers of service whose connections are all in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.service import Service
from sim.studies.observations import RATES
from sim.studies.slo import Slo

UNEQUAL = 0.01
"""Shares of refused requests that differ by more leave latencies of different requests, which say nothing."""

BY_LOAD = "exceeds_connections"
"""The one reason that depends on the load."""


@dataclass(frozen=True)
class Refusal:
    """More refused requests than a limit forgives: a name for what refuses most of them, and a sentence."""

    binding_constraint: str
    explanation: str


def too_many(
    rejected: Mapping[str, int], requests: int, slos: Sequence[Slo], service: Service
) -> Refusal | None:
    """What to say where more of the `requests` are `rejected` (by reason) than every limit forgives.

    Those without a connection do not count here: they come in where the load is less.
    """
    rejected = {reason: count for reason, count in rejected.items() if reason != BY_LOAD}
    share = sum(rejected.values()) / requests
    strictest = min(slos, key=lambda slo: slo.forgiven)
    if share <= strictest.forgiven + 1e-12:
        return None
    reasons = sorted(rejected, key=lambda reason: -rejected[reason])
    shares = ["they" if len(reasons) == 1 else f"{rejected[reason] / requests:.1%}" for reason in reasons]
    causes = "; ".join(
        f"{who} {_remedy(reason, service)}" for who, reason in zip(shares, reasons, strict=True)
    )
    return Refusal(
        f"refused requests through {reasons[0].removeprefix('exceeds_')}",
        f"{share:.1%} of the requests are refused at any rate, more than the {100 * strictest.forgiven:.3g}% that "
        f"{strictest.metric} forgives: {causes}.",
    )


def unequal(names: Sequence[str], shares: Sequence[float], metric: str) -> str | None:
    """The verdict on arms that refuse different shares of the requests, where a latency is to decide; else None."""
    least, most = min(shares), max(shares)
    if metric in RATES or most - least <= UNEQUAL:
        return None
    some, few = names[shares.index(most)], names[shares.index(least)]
    return (
        f"no verdict: {some} refuses {most:.1%} of the requests and {few} {least:.1%}, so that {metric} is of "
        "different requests. Let all arms accept the same ones, or decide by request_goodput, where a refused request "
        "is not good."
    )


def _remedy(reason: str, service: Service) -> str:
    """Why, and the fields that would change it."""
    return {
        "exceeds_max_model_len": (
            f"are longer than max_model_len ({service.max_model_len}): raise engine.max_model_len, as far as the "
            "model and the KV cache allow"
        ),
        "exceeds_kv_cache": (
            f"need more KV than a replica has ({service.capacity.usable_blocks} blocks): raise "
            "hardware.tensor_parallel_size or engine.gpu_memory_utilization, or take a smaller engine.kv_cache_dtype"
        ),
        "exceeds_max_num_batched_tokens": (
            f"are longer than max_num_batched_tokens ({service.limits.max_num_batched_tokens}), which this batcher "
            "never splits: raise engine.max_num_batched_tokens, or take one that chunks prompts"
        ),
    }[reason]
