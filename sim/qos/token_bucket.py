"""A token bucket: so much at once, and then at a rate (Turner, IEEE Communications Magazine 24(10), 1986).

It holds at most `depth` tokens, is full at first, and gains `rate` tokens a second. What is taken in any span of T
seconds is at most depth + rate T. Time and tokens are integers, so that nothing depends on how often it is looked at.
"""

from __future__ import annotations

_UNITS = 10**15  # of a token: a rate of 10**-6 tokens a second is one unit a nanosecond


class TokenBucket:
    """`depth` tokens; `rate_per_s` is exact to a millionth of a token a second."""

    def __init__(self, depth: int, rate_per_s: float) -> None:
        self._depth = depth * _UNITS
        self._rate = round(rate_per_s * 1_000_000)  # units per nanosecond
        if self._rate <= 0:
            raise ValueError(f"a bucket must gain tokens; {rate_per_s} a second is nothing")
        self._level = self._depth
        self._at_ns = 0

    def holds(self, tokens: int, now_ns: int) -> bool:
        return self._level_at(now_ns) >= tokens * _UNITS

    def take(self, tokens: int, now_ns: int) -> None:
        """Take tokens that are there; time must not run backwards between two calls."""
        self._level = self._level_at(now_ns) - tokens * _UNITS
        self._at_ns = now_ns
        if self._level < 0:
            raise ValueError(f"{tokens} tokens taken from a bucket that did not hold them")

    def ready_ns(self, tokens: int) -> int:
        """First time at which it holds so many tokens, at most its depth, if none are taken before."""
        missing = tokens * _UNITS - self._level
        return self._at_ns + max(-(-missing // self._rate), 0)

    def _level_at(self, now_ns: int) -> int:
        return min(self._depth, self._level + self._rate * (now_ns - self._at_ns))
