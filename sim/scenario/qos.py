"""The section `qos`: tiers of service, who is in which, and how strictly they are kept apart.

Every tier has a pool of KV blocks on each replica, seats (`max_num_seqs`) in the same proportion, and prompt tokens of
each step in the same proportion where several tiers have prompts. Compute is shared: a step takes as long as all of it
does.
"""

from __future__ import annotations

import difflib
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sim.errors import ConfigError
from sim.kv.eviction import AnyEviction
from sim.qos.contract import Contracts, Tier
from sim.scenario.named import named
from workloads.trace import Trace

_STRICT = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
)

TierName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=40)]


class TierConfig(BaseModel):
    """A tier of service."""

    model_config = _STRICT

    share: float = Field(strict=True, gt=0, le=1)
    """Share of the KV blocks and seats that it is promised; in soft isolation shares may sum to more than 1, and what
    is promised is then cut in proportion."""
    burst: float = Field(1.0, strict=True, ge=1, le=1000)
    """Most that it may come to where others leave it, in times its share. Soft isolation only."""
    refill_blocks_per_s: float | None = Field(None, strict=True, ge=1e-6, le=1e9)
    """Rate at which it may take blocks beyond its share, on each replica, once (burst - 1) x share are taken; by
    default any."""
    connections: int | None = Field(None, strict=True, ge=1, le=10_000_000)
    """Most requests in flight over all replicas; the next is refused."""
    ttl_s: float | None = Field(None, strict=True, gt=0, le=1e9)
    """How long a cached block can be hit after its last use. Needs a prefix cache."""
    eviction: Annotated[AnyEviction, BeforeValidator(named)] | None = None
    """Which of its cached blocks go first; by default policies.eviction. Needs a prefix cache."""


class QosConfig(BaseModel):
    """Tiers of service. Blocks of different tiers are different pools, and no prefix is shared between tenants."""

    model_config = _STRICT

    isolation: Literal["hard", "soft"] = "hard"
    """hard: never more than the share; soft: also what others leave, until they want it back."""
    tiers: dict[TierName, TierConfig] = Field(min_length=1, max_length=64)
    """By name."""
    tenants: dict[str, str] = Field(min_length=1)
    """The tier of each tenant of the workload."""

    @model_validator(mode="after")
    def _tenants_and_tiers_match(self) -> QosConfig:
        for tenant, tier in self.tenants.items():
            if tier not in self.tiers:
                raise ValueError(
                    f"tenants.{tenant}: unknown tier {tier!r}; {_one_of(tier, list(self.tiers))}"
                )
        for tier in self.tiers:
            if tier not in self.tenants.values():
                raise ValueError(f"tiers.{tier}: no tenant is in it; name one under tenants, or leave it out")
        return self

    @model_validator(mode="after")
    def _shares_fit(self) -> QosConfig:
        shares = {name: _exact(tier.share) for name, tier in self.tiers.items()}
        if self.isolation == "hard":
            if sum(shares.values()) > 1:
                raise ValueError(
                    f"tiers: shares sum to {float(sum(shares.values())):g}; hard isolation promises at most 1, "
                    "soft isolation can share what is promised twice"
                )
            for name, tier in self.tiers.items():
                if tier.burst != 1:
                    raise ValueError(f"tiers.{name}.burst: acts in soft isolation only; set isolation: soft")
        for name, tier in self.tiers.items():
            if shares[name] * _exact(tier.burst) > 1:
                raise ValueError(
                    f"tiers.{name}.burst: {tier.burst:g} times a share of {tier.share:g} is more than there is; "
                    f"at most {1 / tier.share:.4g}"
                )
            if tier.refill_blocks_per_s is not None and tier.burst == 1:
                raise ValueError(
                    f"tiers.{name}.refill_blocks_per_s: is for what goes beyond the share; set burst above 1"
                )
        return self

    @property
    def manages_cache(self) -> str | None:
        """A field that acts on a prefix cache; None where there is none."""
        for name, tier in self.tiers.items():
            for field in ("ttl_s", "eviction"):
                if getattr(tier, field) is not None:
                    return f"qos.tiers.{name}.{field}"
        return None

    def check_cache(self, default: str) -> None:
        """Raise ValueError where a tier's own ways with cached blocks contradict each other, or `default`."""
        for name, tier in self.tiers.items():
            if tier.ttl_s is not None and (tier.eviction.name if tier.eviction else default) == "ttl":
                raise ValueError(
                    f"qos.tiers.{name}.ttl_s: its eviction, ttl, has a time of its own; give one or the other"
                )
        if default != "lru" and all(tier.eviction is not None for tier in self.tiers.values()):
            raise ValueError(
                f"policies.eviction: {default} acts on no tier, since every one has its own; leave it out"
            )

    def build(self, trace: Trace) -> Contracts:
        """The contracts, for the tenants of a trace; raises ConfigError where these are others."""
        for tenant in trace.tenant_names:
            if tenant not in self.tenants:
                raise ConfigError(
                    f"qos.tenants: tenant {tenant!r} of the workload has no tier; give it one of "
                    f"{', '.join(self.tiers)}"
                )
        for tenant in self.tenants:
            if tenant not in trace.tenant_names:
                raise ConfigError(
                    f"qos.tenants.{tenant}: the workload has no such tenant; {_one_of(tenant, trace.tenant_names)}"
                )
        names = list(self.tiers)
        return Contracts(
            self.isolation == "hard",
            tuple(
                Tier(
                    name,
                    _exact(tier.share),
                    _exact(tier.burst),
                    tier.refill_blocks_per_s,
                    tier.connections,
                    tier.ttl_s,
                    None if tier.eviction is None or tier.eviction.name == "lru" else tier.eviction,
                    plain_order=tier.eviction is not None and tier.eviction.name == "lru",
                )
                for name, tier in self.tiers.items()
            ),
            tuple(names.index(self.tenants[tenant]) for tenant in trace.tenant_names),
        )


def _exact(number: float) -> Fraction:
    """The number as it is written: 0.7 is seven tenths."""
    return Fraction(str(number))


def _one_of(name: str, known: Any) -> str:  # noqa: ANN401  names in any order
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
