"""Routers: which replica a request goes to. One policy a file: its config, its decision, its build."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.routing.least_loaded import LeastLoaded
from sim.routing.power_of_two import PowerOfTwo
from sim.routing.prefix_affinity import PrefixAffinity
from sim.routing.round_robin import RoundRobin
from sim.routing.session_affinity import SessionAffinity

AnyRouter = Annotated[
    LeastLoaded | PowerOfTwo | PrefixAffinity | RoundRobin | SessionAffinity, Field(discriminator="name")
]
