"""Values in JSON documents that others wrote: what is not where it is looked for is None."""

from __future__ import annotations

from typing import Any


def at(value: Any, *keys: str) -> Any:  # noqa: ANN401 - JSON has no type
    """Return what stands under these keys, one in the other; None where one is missing or holds no object."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number_at(value: Any, *keys: str) -> float | None:  # noqa: ANN401 - JSON has no type
    """Return the number under these keys; None where there is none."""
    found = at(value, *keys)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def count_at(value: Any, *keys: str) -> int | None:  # noqa: ANN401 - JSON has no type
    """Return the whole number above 0 under these keys; None where there is none."""
    found = at(value, *keys)
    return found if type(found) is int and found > 0 else None
