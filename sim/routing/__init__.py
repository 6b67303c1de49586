"""Routers: which replica a request goes to. One policy a file: its config, its decision, its build."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.routing.least_loaded import LeastLoaded
from sim.routing.round_robin import RoundRobin

AnyRouter = Annotated[LeastLoaded | RoundRobin, Field(discriminator="name")]
