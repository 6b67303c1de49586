"""How much of the KV that lower tiers hold is brought back, instead of being computed again.

`cheaper` weighs the time until a prompt is through, alone on the GPU: loading the first blocks of what was found and
computing the rest. Of one tier loading costs the same for every block, but that there are two links, and the slower of
them counts: the disk's from some block on, or no longer. What loading saves grows from block to block, since a later
token attends to more before it. So between the places where the run goes from one tier to the other, or the other link
begins to count, it pays to load all or none, and only those places need to be compared.

The times are not of one kind: loading leaves the GPU to other sequences, computing does not. A busy engine would
gain more from loading than is said here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from sim.kv.tiers.rates import Rates
from sim.kv.tiers.recompute import Recompute

ReloadPolicy = Literal["cheaper", "always", "never"]


@dataclass(frozen=True, slots=True)
class Queued:
    """Bytes that are on their way to HBM already: in all, and from disk."""

    num_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reload:
    """Decides for blocks of `block_size` tokens and `block_bytes` bytes on each GPU."""

    policy: ReloadPolicy
    rates: Rates
    recompute: Recompute
    block_size: int
    block_bytes: int

    def blocks(self, tokens: int, found: int, on_disk: Sequence[bool], queued: Queued) -> int:
        """How many of the blocks in lower tiers to bring back, from the first on.

        The prompt has `tokens` tokens, the first `found` of which are in HBM; `on_disk` says of each block behind
        them whether it is on disk alone.
        """
        if self.policy != "cheaper":
            return len(on_disk) if self.policy == "always" else 0
        ends = [at for at in range(1, len(on_disk)) if on_disk[at] != on_disk[at - 1]]
        cuts = [0, *ends, len(on_disk)] if on_disk else [0]
        if ends or queued.disk_bytes:
            cuts += self._changes_of_link(cuts, on_disk, queued)
        return min(cuts, key=lambda cut: (self._through_ns(tokens, found, on_disk[:cut], queued), cut))

    def _changes_of_link(self, cuts: Sequence[int], on_disk: Sequence[bool], queued: Queued) -> list[int]:
        """Cuts beside which the other link begins to count, at most one pair between two `cuts`."""
        disk_bytes_per_s = self.rates.disk_bytes_per_s
        if disk_bytes_per_s is None:
            return []
        disk_blocks = [0, *accumulate(on_disk)]

        def waits_for_disk(cut: int) -> bool:
            disk = queued.disk_bytes + disk_blocks[cut] * self.block_bytes
            link = queued.num_bytes + cut * self.block_bytes
            return disk_blocks[cut] > 0 and disk / disk_bytes_per_s > link / self.rates.load_bytes_per_s

        changes = []
        for start, end in pairwise(cuts):
            last = waits_for_disk(end)
            if waits_for_disk(start) != last:
                first = start + bisect_left(
                    range(start, end), x=True, key=lambda cut: waits_for_disk(cut) == last
                )
                changes += [first - 1, first]
        return changes

    def _through_ns(self, tokens: int, found: int, loaded: Sequence[bool], queued: Queued) -> float:
        disk = sum(loaded) * self.block_bytes
        host = len(loaded) * self.block_bytes - disk
        load = self.rates.load_ns(host, disk, queued.num_bytes, queued.disk_bytes)
        return load + self.recompute.prompt_ns(tokens, found + len(loaded) * self.block_size)
