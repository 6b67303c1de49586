"""Short forms in a scenario file."""

from __future__ import annotations

from typing import Any


def named(value: Any) -> Any:  # noqa: ANN401  whatever YAML holds
    """`chunked` is short for `{name: chunked}`."""
    return {"name": value} if isinstance(value, str) else value
