"""Max-min fair rates by progressive filling, in exact fractions.

All rates grow together, each in proportion to its weight. A flow stops growing where it reaches its own limit, or
where a link on its path is full; the others go on (Bertsekas and Gallager, Data Networks, 2nd edition, section
6.5.2). The result is the only allocation in which no flow can gain unless a flow that has no more than it loses.

Fractions, not floats: rates that are exact make ends that are exact, whatever the order of the flows, and the same
times where all bytes and bandwidths are scaled alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple


class Demand(NamedTuple):
    """`flows` flows that are alike.

    path              links, by index; one that is named twice carries every byte twice
    weight            shares of a full link are in proportion to it
    max_bytes_per_s   limit of one flow; None: only the links limit it
    """

    path: tuple[int, ...]
    flows: int
    weight: int
    max_bytes_per_s: int | None


def max_min_rates(bytes_per_s: Mapping[int, int], demands: Sequence[Demand]) -> list[Fraction]:
    """Rate of one flow of each demand [bytes/s], on links of these bandwidths. Every path names a link."""
    rates = [Fraction(0)] * len(demands)
    left: dict[int, Fraction] = {}  # bandwidth that the flows stopped so far leave
    weight: dict[int, int] = {}  # of the flows that still grow
    for demand in demands:
        for link in demand.path:
            left[link] = Fraction(bytes_per_s[link])
            weight[link] = weight.get(link, 0) + demand.flows * demand.weight
    growing = [index for index, demand in enumerate(demands) if demand.flows]
    while growing:
        levels = {link: left[link] / total for link, total in weight.items() if total}
        level = min(levels.values())
        stopped = [
            index for index in growing if _limit(demands[index], level) < level * demands[index].weight
        ]
        if not stopped:  # no flow stops before a link is full
            full = {link for link, reached in levels.items() if reached == level}
            stopped = [index for index in growing if not full.isdisjoint(demands[index].path)]
        for index in stopped:
            demand = demands[index]
            rates[index] = _limit(demand, level)
            for link in demand.path:
                left[link] -= demand.flows * rates[index]
                weight[link] -= demand.flows * demand.weight
        growing = [index for index in growing if not rates[index]]
    return rates


def _limit(demand: Demand, level: Fraction) -> Fraction:
    """What one flow has when all have grown to `level` per unit of weight."""
    reached = level * demand.weight
    if demand.max_bytes_per_s is None or reached < demand.max_bytes_per_s:
        return reached
    return Fraction(demand.max_bytes_per_s)
