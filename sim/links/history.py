"""Who used which link when: rates as change points, one row per change, expanded when a report asks."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.links.link import Link


class Points(NamedTuple):
    """`bytes_per_s[i]` holds from `t_ns[i]` until `t_ns[i + 1]`, the last one for good; before the first: 0."""

    t_ns: NDArray[np.int64]
    bytes_per_s: NDArray[np.float64]


class History:
    """Rates by rate class and owner, at most one row for each at one instant."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, str], int] = {}  # (rate class, owner) -> key
        self._last: list[int] = []  # row by key
        self._t_ns = array("q")
        self._key = array("q")
        self._rate = array("d")

    def __len__(self) -> int:
        return len(self._t_ns)

    def set(self, now_ns: int, rate_class: int, owner: str, bytes_per_s: float) -> None:
        """From now on the owner's flows of that class run at this rate together."""
        key = self._keys.setdefault((rate_class, owner), len(self._keys))
        if key == len(self._last):
            self._last.append(-1)
        row = self._last[key]
        if row >= 0 and self._t_ns[row] == now_ns:
            self._rate[row] = bytes_per_s
        elif row < 0 or self._rate[row] != bytes_per_s:
            self._last[key] = len(self._t_ns)
            self._t_ns.append(now_ns)
            self._key.append(key)
            self._rate.append(bytes_per_s)

    def points(self, paths: Mapping[int, Sequence[Link]]) -> dict[str, dict[str, Points]]:
        """Change points by link and owner, given the path of each rate class."""
        t_ns, key, rate = np.array(self._t_ns), np.array(self._key), np.array(self._rate)
        parts: dict[str, dict[str, list[Points]]] = {}
        for (rate_class, owner), number in self._keys.items():
            rows = key == number
            for link in dict.fromkeys(paths[rate_class]):
                times = paths[rate_class].count(link)
                part = Points(t_ns[rows], times * rate[rows])
                parts.setdefault(link.name, {}).setdefault(owner, []).append(part)
        return {
            link: {owner: added(points) for owner, points in owners.items()} for link, owners in parts.items()
        }


def added(parts: Sequence[Points]) -> Points:
    """The sum of rates, with a point wherever it changes."""
    t_ns = np.unique(np.concatenate([part.t_ns for part in parts]))
    rate = np.zeros(t_ns.size)
    for part in parts:
        rate += np.concatenate([[0.0], part.bytes_per_s])[np.searchsorted(part.t_ns, t_ns, side="right")]
    changed = np.diff(rate, prepend=0.0) != 0
    return Points(t_ns[changed], rate[changed])
