"""The longest cached prefix first, as SGLang's scheduler orders its queue (Zheng et al., 2024, section 3).

Blocks are findable from the step that computes them, so whoever was admitted just now counts: those that share its
prompt come next and compute none of it again, in the same step if the budget lasts.
"""

from __future__ import annotations

from sim.batching.decision import ArrivalsView


class LongestPrefix:
    """Prefer the most tokens found in the prefix cache, the older of equals."""

    def arrived(self, tokens: int) -> None:
        pass

    def taken(self, tokens: int) -> None:
        pass

    def best(self, arrivals: ArrivalsView, count: int) -> int:
        return max(range(count), key=arrivals.cached_tokens)
