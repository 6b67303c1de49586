"""What the tiers of a run held and moved, in the words of a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sim.kv.tiers.account import PrefetchAccount, TierAccount
from sim.kv.tiers.setup import TierSetup

_GIB = 2**30


def tier_report(
    setup: TierSetup, accounts: Sequence[TierAccount], *, gpus: int, duration_ns: int
) -> dict[str, Any]:
    """Bytes are those of all replicas and their `gpus` GPUs each; room in lower tiers that of a replica on average.

    Hit rates are shares of the tokens that admitted sequences asked for, preempted ones again. `reload_share` is that
    of the tokens found which were brought back from lower tiers.
    """
    total = sum(accounts, TierAccount())
    block_bytes = setup.reload.block_bytes * gpus
    found = total.hbm_tokens + total.arriving_tokens + total.reloaded_tokens
    moved = (
        "offloaded",
        "written_back",
        "swapped_out",
        "reloaded",
        "swapped_in",
        "from_disk",
        "demoted",
        "dropped",
    )
    rates = ("hbm", "arriving", "host", "disk", "recomputed")
    report = {
        "host_blocks": setup.host_blocks,
        "disk_blocks": setup.disk_blocks,
        "hit_rates": {name: _share(getattr(total, f"{name}_tokens"), total.queried_tokens) for name in rates},
        "reloaded_tokens": total.reloaded_tokens,
        "reload_share": _share(total.reloaded_tokens, found),
        **{f"{name}_bytes": getattr(total, name) * block_bytes for name in moved},
        **_room("host", accounts, block_bytes, duration_ns),
        **(_room("disk", accounts, block_bytes, duration_ns) if setup.disk_blocks else {}),
    }
    if total.prefetch is not None:
        report["prefetch"] = _prefetch(total.prefetch, block_bytes)
    return report


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _room(tier: str, accounts: Sequence[TierAccount], block_bytes: int, duration_ns: int) -> dict[str, float]:
    used = sum(getattr(account, f"{tier}_used_block_ns") for account in accounts)
    peak = max(getattr(account, f"{tier}_peak_blocks") for account in accounts)
    mean = used / duration_ns / len(accounts) if duration_ns else 0.0
    return {
        f"{tier}_used_gib_mean": mean * block_bytes / _GIB,
        f"{tier}_used_gib_peak": peak * block_bytes / _GIB,
    }


def _prefetch(account: PrefetchAccount, block_bytes: int) -> dict[str, int]:
    names = [*(field.name for field in fields(account)), "unread"]
    return {f"{name}_bytes": getattr(account, name) * block_bytes for name in names}
