"""What admissions found in which tier, and how much moved between tiers. Blocks and tokens; bytes follow from them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class PrefetchAccount:
    """Blocks that were brought back for turns that are expected.

    Each of those issued is one of

    useful   asked for after it had come, by whichever request
    late     asked for while it was on its way: the request waited for the rest
    wasted   used for something else before anybody asked
    unread   nobody has asked yet

    `evicting` counts blocks, not prefetched ones, that a prefetch pushed out of HBM and that a request then asked for.
    """

    issued: int = 0
    useful: int = 0
    late: int = 0
    wasted: int = 0
    evicting: int = 0

    @property
    def unread(self) -> int:
        return self.issued - self.useful - self.late - self.wasted

    def __add__(self, other: PrefetchAccount) -> PrefetchAccount:
        """Both together."""
        return PrefetchAccount(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(slots=True)
class TierAccount:
    """Totals of one engine.

    queried_tokens      that admitted sequences asked for
    hbm_tokens          of these, in HBM
    arriving_tokens     on their way to HBM for somebody else
    host_tokens, disk_tokens   brought back from there
    recomputed_tokens   found in host memory or on disk, and computed all the same

    Blocks: offloaded as they were computed; written_back before they were overwritten; swapped_out of preempted
    sequences; reloaded and swapped_in, to where they are wanted; prefetched; of these three from_disk; demoted from
    host memory to disk; dropped, since host memory or the way to the disk had no room for them.

    Room: blocks times nanoseconds from 0 to the end of the run, and the most at once.
    """

    queried_tokens: int = 0
    hbm_tokens: int = 0
    arriving_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    recomputed_tokens: int = 0
    offloaded: int = 0
    written_back: int = 0
    swapped_out: int = 0
    reloaded: int = 0
    swapped_in: int = 0
    prefetched: int = 0
    from_disk: int = 0
    demoted: int = 0
    dropped: int = 0
    host_used_block_ns: int = 0
    host_peak_blocks: int = 0
    disk_used_block_ns: int = 0
    disk_peak_blocks: int = 0
    prefetch: PrefetchAccount | None = None

    @property
    def reloaded_tokens(self) -> int:
        return self.host_tokens + self.disk_tokens

    def __add__(self, other: TierAccount) -> TierAccount:
        """Of two engines together; peaks are summed, each engine having tiers of its own."""
        names = [f.name for f in fields(self) if f.name != "prefetch"]
        both = TierAccount(*(getattr(self, name) + getattr(other, name) for name in names))
        accounts = [one.prefetch for one in (self, other) if one.prefetch is not None]
        both.prefetch = sum(accounts, PrefetchAccount()) if accounts else None
        return both
