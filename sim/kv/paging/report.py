"""What the paging of a run did, over all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.kv.paging.account import PagingAccount
from sim.kv.paging.host_paging import HostPaging


@dataclass(frozen=True, eq=False)
class PagingReport:
    """The account and the heat map.

    summary  the totals of `PagingAccount`, hit rate, and the size of things
    columns  group, from_tokens, page_reads, attention_mass: one row for each group of layers and distance from the
             end that anything was read at
    steps    (steps, facts) for each replica: see `sim.engine.paged_steps`
    """

    summary: dict[str, Any]
    columns: dict[str, NDArray[Any]]
    steps: tuple[NDArray[np.int64], ...]


def paging_report(
    policy: str, pagings: Sequence[HostPaging], steps: Sequence[NDArray[np.int64]]
) -> PagingReport:
    """Report on replicas that are all alike."""
    total = sum((paging.account for paging in pagings), PagingAccount())
    heat = pagings[0].heat
    for other in pagings[1:]:
        heat = heat.plus(other.heat)
    found = heat.map()
    groups, bins = found.pages.shape
    summary = {
        "policy": policy,
        "resident_pages": pagings[0].capacity,
        "page_bytes": pagings[0].page_bytes,
        "hit_rate": total.hit_rate,
        **asdict(total),
    }
    columns: dict[str, NDArray[Any]] = {
        "group": np.repeat(np.arange(groups), bins),
        "from_tokens": np.tile(found.from_tokens, groups),
        "page_reads": found.pages.ravel(),
        "attention_mass": found.mass.ravel(),
    }
    return PagingReport(summary, columns, tuple(steps))
