"""Which prompts share a prefix: a generative rule with few numbers, for models of traces with block ids.

Nearly all prompts begin with the same few blocks (the root: a system prompt). A part of them continue an
earlier prompt: they repeat its leading blocks. How likely that is, and how deep it goes, depends on the
length of the prompt; how long ago the earlier prompt came is drawn in requests: the rule holds at any rate.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from workloads.streams import Streams
from workloads.trace import BlockHashes, Int64

Share = Annotated[float, Field(ge=0, le=1)]

_WINDOW = 64  # earlier prompts about the drawn age, of which the best fitting is continued
_LACK = 4  # a prompt that is too short for the depth asked for fits worse than one that is too long
_CONTINUED = 1000  # and one that was continued before is taken only if there is no other


class PrefixModel(BaseModel):
    """Prefix sharing of a trace.

    root_blocks  leading blocks that most prompts share
    root_share   share of the prompts that begin with them
    share        per bin of input length (equal shares of the requests): probability to continue another
    depth        per bin: quantiles, at equal steps, of shared blocks / own blocks of those that continue
    age          quantiles, at equal steps, of how many requests ago the continued prompt came
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    block_tokens: Annotated[int, Field(ge=1)]
    root_blocks: Annotated[int, Field(ge=0)]
    root_share: Share
    share: tuple[Share, ...]
    depth: tuple[tuple[Share, ...], ...]
    age: Annotated[tuple[Annotated[float, Field(ge=1)], ...], Field(min_length=2)]

    def draw(
        self, input_tokens: Int64, rank: NDArray[np.float64], streams: Streams
    ) -> tuple[BlockHashes, Int64]:
        """Return block ids and conversation of each prompt; `rank` is its length's probability, 0 to 1."""
        full = input_tokens // self.block_tokens
        counts = -(-input_tokens // self.block_tokens)
        wanted, age = self._wishes(rank, counts, streams)
        ids = np.empty(int(counts.sum()), dtype=np.int64)
        ends = np.cumsum(counts)
        starts = ends - counts
        rooted = streams.of("prefixes", 1).random(counts.size) < self.root_share
        talk = np.arange(counts.size)
        continued = np.zeros(counts.size, dtype=np.int64)
        fresh = self.root_blocks
        for row in range(counts.size):
            source = self._find(row, int(age[row]), int(wanted[row]), full, continued)
            if source is None:
                shared = min(self.root_blocks, int(full[row])) if rooted[row] else 0
                ids[starts[row] : starts[row] + shared] = np.arange(shared)
            else:
                shared = min(int(wanted[row]), int(full[source]), int(full[row]))
                ids[starts[row] : starts[row] + shared] = ids[starts[source] : starts[source] + shared]
                talk[row] = talk[source]
                continued[source] = _CONTINUED
            new = int(counts[row]) - shared
            ids[ends[row] - new : ends[row]] = np.arange(fresh, fresh + new)
            fresh += new
        return BlockHashes.build(self.block_tokens, counts, ids), talk

    def _wishes(
        self, rank: NDArray[np.float64], counts: Int64, streams: Streams
    ) -> tuple[Int64, NDArray[np.float64]]:
        """Return shared blocks asked for (0: continues nothing) and age in requests."""
        chance, level, when = streams.of("prefixes", 0).random((rank.size, 3)).T
        bins = np.minimum((rank * len(self.share)).astype(np.int64), len(self.share) - 1)
        fraction = np.empty(rank.size)
        for at, quantiles in enumerate(self.depth):
            here = bins == at
            fraction[here] = np.interp(level[here], np.linspace(0, 1, len(quantiles)), quantiles)
        wanted = np.where(chance < np.asarray(self.share)[bins], np.rint(fraction * counts), 0)
        age = np.rint(np.interp(when, np.linspace(0, 1, len(self.age)), self.age))
        return wanted.astype(np.int64), age

    def _find(self, row: int, age: int, wanted: int, full: Int64, continued: Int64) -> int | None:
        """Return the earlier prompt, `age` requests ago or so, whose full blocks come nearest to `wanted`."""
        if wanted <= self.root_blocks or age > row:
            return None
        low = max(0, row - age - _WINDOW // 2)
        high = min(row, low + _WINDOW)
        lacking = wanted - full[low:high]
        return low + int(np.argmin(np.where(lacking > 0, _LACK * lacking, -lacking) + continued[low:high]))


def infinite_cache_hit_rate(hashes: BlockHashes) -> float:
    """Share of block accesses that an infinite cache, empty at the start, would answer."""
    return 1 - np.unique(hashes.ids).size / hashes.ids.size if hashes.ids.size else 0.0


def fit_prefixes(hashes: BlockHashes, rank: NDArray[np.float64], bins: int) -> PrefixModel:
    """Measure the sharing of a trace, in which the first request finds nothing."""
    counts = np.diff(hashes.offsets)
    root = _root(hashes)
    depth, age = _longest_seen(hashes)
    rooted = np.array([hashes.of(i)[: len(root)].tolist() == root for i in range(counts.size)])
    continues = depth > len(root)
    at = np.minimum((rank * bins).astype(np.int64), bins - 1)
    steps = np.linspace(0, 1, 33)
    ages = np.quantile(age[continues], steps) if continues.any() else np.ones(2)
    # a request early in the trace finds no prompt of the drawn age: of late ones, more continue
    old_enough = np.interp(np.arange(counts.size), ages, np.linspace(0, 1, ages.size)).mean()
    share, quantiles = [], []
    for here in (at == b for b in range(bins)):
        some = here & continues
        share.append(min(1.0, float(some.sum() / max(here.sum(), 1) / old_enough)))
        fractions = depth[some] / counts[some] if some.any() else np.zeros(1)
        quantiles.append(tuple(np.quantile(fractions, np.linspace(0, 1, 11)).round(3)))
    return PrefixModel(
        block_tokens=hashes.block_tokens,
        root_blocks=len(root),
        root_share=round(float(rooted.mean()), 4) if root else 0.0,
        share=tuple(round(value, 4) for value in share),
        depth=tuple(quantiles),
        age=tuple(np.maximum(ages, 1).round(1)),
    )


def _root(hashes: BlockHashes) -> list[int]:
    """Return the leading blocks that more than half of all requests have in common."""
    runs = [hashes.of(i) for i in range(hashes.offsets.size - 1)]
    root: list[int] = []
    while True:
        runs = [run for run in runs if run.size > len(root)]
        ids, times = np.unique([run[len(root)] for run in runs], return_counts=True)
        if not ids.size or times.max() * 2 <= hashes.offsets.size - 1:
            return root
        best = int(ids[np.argmax(times)])
        runs = [run for run in runs if run[len(root)] == best]
        root.append(best)


def _longest_seen(hashes: BlockHashes) -> tuple[Int64, Int64]:
    """Return per request its leading blocks seen before, and how many requests ago the last of them was."""
    last: dict[int, int] = {}
    depth = np.zeros(hashes.offsets.size - 1, dtype=np.int64)
    age = np.zeros_like(depth)
    for row in range(depth.size):
        run = hashes.of(row).tolist()
        seen = 0
        while seen < len(run) and run[seen] in last:
            seen += 1
        depth[row] = seen
        age[row] = row - last[run[seen - 1]] if seen else 0
        last.update(dict.fromkeys(run, row))
    return depth, age
