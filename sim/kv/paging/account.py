"""What became of every page read and every byte prefetched.

Reads of pages, each one of

    hits       the page was in HBM; `prefetch_hits` of them were the first read of a prefetched page
    late       the page had been asked for by the prefetcher and was not all there: the step waited for the rest
    demanded   the page was neither: the step waited for all of it

Bytes that the prefetcher asked for and a link carried, `issued`, each one of

    useful     read after they had come in time
    late       of pages that were late, whole; `waited_bytes` of them came while the step waited
    wasted     evicted, or their sequence ended, before any read; also the part of a page that had come by then
    unread     in HBM, not read yet
    in_flight  the part of the page now on its way that has come

so that issued = useful + late + wasted + unread + in_flight, always. Pages that the prefetcher asked for and then,
before the first byte had come, no longer, are `withdrawn`: no link carried them. So is what its sequence's end finds
in the queue.

`evicting` counts demanded bytes, not prefetched ones: of pages that a prefetched page had pushed out of HBM, and that
no prefetch brought back before they were demanded. It is the pollution of feedback-directed prefetching (Srinath,
Mutlu, Kim and Patt, HPCA 2007), and what prefetching costs beside bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class PagingAccount:
    """Totals so far: reads in pages, the rest in bytes (of one GPU)."""

    steps: int = 0
    reads: int = 0
    hits: int = 0
    prefetch_hits: int = 0
    late: int = 0
    demanded: int = 0
    demand_bytes: int = 0
    issued_bytes: int = 0
    useful_bytes: int = 0
    late_bytes: int = 0
    waited_bytes: int = 0
    wasted_bytes: int = 0
    unread_bytes: int = 0
    in_flight_bytes: int = 0
    withdrawn_bytes: int = 0
    evicting_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the reads that found their page in HBM; 1 where nothing was read."""
        return self.hits / self.reads if self.reads else 1.0

    @property
    def blocking_bytes(self) -> int:
        """Bytes that steps waited for."""
        return self.demand_bytes + self.waited_bytes

    @property
    def imbalance_bytes(self) -> int:
        """0, or a byte has no fate or two."""
        fates = (
            self.useful_bytes + self.late_bytes + self.wasted_bytes + self.unread_bytes + self.in_flight_bytes
        )
        return self.issued_bytes - fates

    def __add__(self, other: PagingAccount) -> PagingAccount:
        """Both together."""
        return PagingAccount(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
