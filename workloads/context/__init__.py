"""Context policies: what the prompt of a turn repeats of its session. One policy a file: its config, its decision."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from workloads.context.full import Full
from workloads.context.sliding_window import SlidingWindow
from workloads.context.summary import Summary


def _named(value: Any) -> Any:  # noqa: ANN401  whatever YAML holds
    """`full` is short for `{name: full}`."""
    return {"name": value} if isinstance(value, str) else value


AnyContextPolicy = Annotated[
    Annotated[Full | Summary | SlidingWindow, Field(discriminator="name")], BeforeValidator(_named)
]
