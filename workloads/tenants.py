"""Tenants: who sends a request. Whole sessions belong to one tenant; no prefix is shared between tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from workloads.bounds import Integral
from workloads.errors import ConfigError
from workloads.trace import BlockHashes, Int64, Trace


class TenantConfig(BaseModel):
    """One tenant: its share of the requests (or sessions), and its priority (lower runs first)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    priority: Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31), Integral] = 0


def assign_tenants(trace: Trace, tenants: Mapping[str, TenantConfig], rng: np.random.Generator) -> Trace:
    """Share the requests out by weight; requests of one session go to one tenant.

    A trace with prefix blocks but without sessions loses what requests of different tenants shared.
    """
    if len(trace.tenant_names) > 1:
        raise ConfigError(
            f"workload.tenants: the trace has its own ({', '.join(trace.tenant_names)}); leave tenants out"
        )
    edges = np.cumsum([tenant.weight for tenant in tenants.values()])
    groups = _groups(trace.session)
    draws = rng.random(int(groups.max(initial=-1)) + 1) * edges[-1]
    codes = np.minimum(np.searchsorted(edges, draws, side="right"), len(tenants) - 1)[groups]
    priorities = np.array([tenant.priority for tenant in tenants.values()], dtype=np.int64)
    return replace(
        trace.with_columns(tenant=codes, priority=priorities[codes]),
        tenant_names=tuple(tenants),
        hashes=None if trace.hashes is None else own_namespace(trace.hashes, codes),
    )


def _groups(session: Int64) -> Int64:
    """Return a dense code per session; a request without one is a group of its own."""
    keys = np.where(session >= 0, session, -1 - np.arange(session.size))
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse]


def own_namespace(hashes: BlockHashes, codes: Int64) -> BlockHashes:
    """Give the same block other ids in other tenants; ids become dense."""
    counts = np.diff(hashes.offsets)
    owners = np.repeat(codes, counts)
    _, ids = np.unique(hashes.ids, return_inverse=True)
    _, dense = np.unique(ids * (int(codes.max(initial=0)) + 1) + owners, return_inverse=True)
    return BlockHashes.build(hashes.block_tokens, counts, dense)
