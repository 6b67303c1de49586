"""What is refused as too much: more than fits in memory, or in a clock of int64 nanoseconds."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

MOST_REQUESTS: Final = 20_000_000
MOST_TOKENS: Final = 10**9  # of a length
MOST_BLOCKS: Final = 200_000_000  # prefix blocks of all drawn prompts
LONGEST_S: Final = 2e9  # 63 years: two of them can be added in int64 nanoseconds
LONGEST_NS: Final = 2 * 10**18
LEAST_RATE: Final = 1e-9  # requests/s
MOST_RATE: Final = 1e9
LEAST_BURSTINESS: Final = 1e-4  # gaps of CV 100

_EXACT = 2**53


def _integral(value: Any) -> Any:  # noqa: ANN401 - whatever a scenario holds
    """Take 1e3 as 1000, and leave 2.5 to be refused."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


Integral = BeforeValidator(_integral)
Tokens = Annotated[int, Field(strict=True, ge=1, le=MOST_TOKENS), Integral]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_REQUESTS), Integral]
