"""Prefetchers over one load and one link, in closed form: what each of them buys, and at what price.

Every step takes `step_ns` on the GPU once its pages are there. One link of `bytes_per_s` brings them: first what the
step waits for, then, while it runs, what the prefetcher asked for, as much as the step is long. So

    step = blocking bytes / bandwidth + step_ns,   prefetched in it = min(queue, bandwidth x step_ns)

The sequences all start at the first step, with prompts whose pages have just been written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.kv.access.reads import AccessConfig, Int64, num_blocks
from sim.kv.paging.account import PagingAccount
from sim.kv.paging.host_paging import HostPaging
from sim.kv.prefetch.decision import PrefetchConfig

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Load:
    """What is run. `resident` is the share of all pages of the last step that HBM holds.

    prompts      context tokens of each sequence before its first step
    steps        decode steps, of all sequences together
    groups       of layers
    page_bytes   of a block in one group
    step_ns      of the GPU alone
    bytes_per_s  of the link
    """

    prompts: Sequence[int]
    steps: int
    groups: int
    block_size: int
    page_bytes: int
    resident: float
    step_ns: int
    bytes_per_s: int
    seed: int = 0

    @property
    def capacity(self) -> int:
        """Pages that HBM holds."""
        blocks = sum(num_blocks(prompt + self.steps, self.block_size) for prompt in self.prompts)
        return max(int(self.resident * blocks * self.groups), 1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One prefetcher: the account after the last step, and how long each step took, its waiting included."""

    load: Load
    account: PagingAccount
    step_ns: Int64

    @property
    def elapsed_ns(self) -> int:
        return int(self.step_ns.sum())

    @property
    def mean_step_ms(self) -> float:
        return float(self.step_ns.mean()) / 1e6

    @property
    def prefetch_share(self) -> float:
        """Share of the link's bandwidth, over the whole time, that prefetches took in the background."""
        return self._share(self.account.issued_bytes - self.account.waited_bytes)

    @property
    def link_share(self) -> float:
        """Share of the link's bandwidth, over the whole time, that was used for anything."""
        return self._share(self.account.issued_bytes + self.account.demand_bytes)

    def _share(self, num_bytes: int) -> float:
        return num_bytes * NS_PER_S / (self.load.bytes_per_s * self.elapsed_ns)


def run(load: Load, access: AccessConfig, prefetch: PrefetchConfig) -> Outcome:
    """Run one prefetcher over the load."""
    model = access.build(load.groups, load.block_size, load.seed)
    paging = HostPaging(model, prefetch.build(model), capacity=load.capacity, page_bytes=load.page_bytes)
    step_ns = np.empty(load.steps, dtype=np.int64)
    for step in range(load.steps):
        blocking = paging.begin_step([(key, prompt + step + 1) for key, prompt in enumerate(load.prompts)])
        queued = paging.plan_prefetches()
        step_ns[step] = load.step_ns - (-blocking * NS_PER_S // load.bytes_per_s)
        paging.arrived(min(queued, load.bytes_per_s * load.step_ns // NS_PER_S))
    return Outcome(load, paging.account, step_ns)


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Lay outcomes out as text, one a row; differences are to the first."""
    head = (
        f"{'':<20}{'hits':>8}{'gain':>8}{'prefetch':>10}{'link':>8}{'step':>10}"
        f"{'useful':>8}{'late':>7}{'wasted':>8}{'evicting':>10}"
    )
    rows = [head]
    first = next(iter(outcomes.values()))
    for name, outcome in outcomes.items():
        account = outcome.account
        issued = max(account.issued_bytes, 1)
        rows.append(
            f"{name:<20}{account.hit_rate:>8.1%}{account.hit_rate - first.account.hit_rate:>+8.1%}"
            f"{outcome.prefetch_share:>10.1%}{outcome.link_share:>8.1%}{outcome.mean_step_ms:>7.2f} ms"
            f"{account.useful_bytes / issued:>8.0%}{account.late_bytes / issued:>7.0%}"
            f"{account.wasted_bytes / issued:>8.0%}"
            f"{account.evicting_bytes / max(account.blocking_bytes, 1):>10.1%}"
        )
    return "\n".join(rows)
