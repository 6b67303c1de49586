"""What the links of a run did: a summary by kind of link, and who used which link when as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sim.engine.clock import NS_PER_S
from sim.engine.records import StepColumns
from sim.links.history import Points
from sim.links.link import Link, LinkUse
from sim.links.network import Network
from sim.links.replica_links import STEP

MOST_POINTS: Final = 2000
"""Change points of one owner on one link; where there were more they are means over as many equal times."""


@dataclass(frozen=True, eq=False)
class LinkReport:
    """What a run's links did.

    summary   links: by kind of link, `LinkUse` over all replicas, by owner too, and the busiest replica;
              transfer_wait_s: how long steps waited for blocking transfers, in all
    columns   t_s, replica, link, owner, bytes_per_s: a rate holds from its row to the next of the same owner
    """

    summary: dict[str, Any]
    columns: dict[str, NDArray[Any]]


def link_report(network: Network, logs: Sequence[StepColumns]) -> LinkReport:
    """Report on a run that has ended now; `logs` are the steps of its replicas."""
    waited_ns = sum(links.wait_ns for links in network.replicas)
    summary = {"links": _by_link(network), "transfer_wait_s": waited_ns / NS_PER_S}
    return LinkReport(summary, _columns(network, logs))


def _by_link(network: Network) -> dict[str, dict[str, Any]]:
    kinds: dict[str, list[Link]] = {}
    for link in network.fabric.links.values():
        kinds.setdefault(_kind(link), []).append(link)
    return {kind: _kind_use(network, links) for kind, links in kinds.items() if any(x.owners for x in links)}


def _kind(link: Link) -> str:
    return link.name.partition(".")[2]


def _kind_use(network: Network, links: Sequence[Link]) -> dict[str, Any]:
    uses = [network.fabric.use(link) for link in links]
    owners = sorted({owner for _, by_owner in uses for owner in by_owner})
    busiest = max(range(len(links)), key=lambda index: (uses[index][0].utilization, -index))
    return {
        **asdict(_together([total for total, _ in uses], len(links))),
        "by_owner": {
            owner: asdict(_together([by[owner] for _, by in uses if owner in by], len(links)))
            for owner in owners
        },
        "busiest": {"replica": busiest, "utilization": uses[busiest][0].utilization},
    }


def _together(uses: Sequence[LinkUse], links: int) -> LinkUse:
    """Bytes and busy time in all; utilization as the mean over `links` links of one bandwidth."""
    moved, busy_s = sum(use.bytes_total for use in uses), sum(use.busy_s for use in uses)
    utilization = sum(use.utilization for use in uses) / links
    return LinkUse(moved, busy_s, utilization, moved / busy_s if busy_s else 0.0)


def _columns(network: Network, logs: Sequence[StepColumns]) -> dict[str, NDArray[Any]]:
    history = network.fabric.history()
    end_ns = network.env.now_ns
    rows: list[tuple[int, str, str, Points]] = []
    for replica, (links, log) in enumerate(zip(network.replicas, logs, strict=True)):
        for kind, link in links.machine.links.items():
            owners: Mapping[str, Points] = history.get(link.name, {})
            series = {owner: bounded(points, end_ns) for owner, points in owners.items() if owner != STEP}
            if kind == "hbm":
                series[STEP] = _step_rates(log, np.array(links.step_bytes, dtype=np.int64), end_ns)
            rows += [(replica, kind, owner, points) for owner, points in sorted(series.items())]
    rows = [row for row in rows if row[3].t_ns.size]
    sizes = [points.t_ns.size for *_, points in rows]
    return {
        "t_s": np.concatenate([np.zeros(0), *(points.t_ns / NS_PER_S for *_, points in rows)]),
        "replica": np.repeat(np.array([row[0] for row in rows], dtype=np.int64), sizes),
        "link": np.repeat(np.array([row[1] for row in rows], dtype=object), sizes),
        "owner": np.repeat(np.array([row[2] for row in rows], dtype=object), sizes),
        "bytes_per_s": np.concatenate([np.zeros(0), *(points.bytes_per_s for *_, points in rows)]),
    }


def bounded(points: Points, end_ns: int, most: int = MOST_POINTS) -> Points:
    """The same rates, or where there are more than `most` changes, means over so many equal times until the end."""
    if points.t_ns.size <= most:
        return points
    moved = np.concatenate([[0.0], np.cumsum(points.bytes_per_s[:-1] * np.diff(points.t_ns))])
    last_ns = max(end_ns, int(points.t_ns[-1]) + 1)
    t_ns = np.append(points.t_ns, last_ns)
    return _means(
        t_ns, np.append(moved, moved[-1] + points.bytes_per_s[-1] * (last_ns - t_ns[-2])), end_ns, most
    )


def _step_rates(log: StepColumns, step_bytes: NDArray[np.int64], end_ns: int) -> Points:
    """Mean rates of the steps' own traffic, which each step is taken to spread evenly over its time."""
    ends_ns = log.step_ends_ns()
    moved = np.cumsum(step_bytes)
    t_ns = np.stack([ends_ns - log.step_ns, ends_ns], axis=1).ravel()
    across = np.stack([moved - step_bytes, moved], axis=1).ravel()
    return _means(t_ns, across * float(NS_PER_S), end_ns, MOST_POINTS)


def _means(t_ns: NDArray[np.int64], moved: NDArray[np.float64], end_ns: int, most: int) -> Points:
    """Mean rates over `most` equal times, of what had `moved` [1e-9 bytes] at the times `t_ns`."""
    if not t_ns.size or not end_ns:
        return Points(np.zeros(0, dtype=np.int64), np.zeros(0))
    edges = np.unique(np.linspace(0, end_ns, most).astype(np.int64))
    rates = np.append(np.diff(np.interp(edges, t_ns, moved)) / np.diff(edges), 0.0)
    changed = np.diff(rates, prepend=0.0) != 0
    return Points(edges[changed], rates[changed])
