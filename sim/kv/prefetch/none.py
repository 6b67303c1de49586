"""No prefetching: a cache that fetches on demand."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from sim.kv.access.reads import AccessModel
from sim.kv.prefetch.decision import NO_PAGES, Decision, PagingView


class NoPrefetch(BaseModel):
    """Fetch on demand only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["none"] = "none"

    def build(self, access: AccessModel) -> NoPrefetcher:  # noqa: ARG002
        return NoPrefetcher()


class NoPrefetcher:
    """Names nothing."""

    def plan(self, view: PagingView) -> Decision:  # noqa: ARG002
        return Decision(NO_PAGES)
