"""The `links:` section: bandwidths that are known better than the profile's, and what others send over them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sim.engine.clock import NS_PER_S
from sim.links.background import Background
from sim.links.machine import ROUTES

_GB = 1e9
_STRICT = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
)


class BackgroundConfig(BaseModel):
    """Bytes that somebody else moves over a replica's links: a neighbour's weights, a checkpoint."""

    model_config = _STRICT

    route: Literal[
        "load",
        "offload",
        "copy",
        "disk_load",
        "disk_store",
        "nvlink_send",
        "nvlink_receive",
        "nic_send",
        "nic_receive",
    ]
    """Which way: load is host memory to HBM, offload the way back, copy within HBM."""
    gb_per_s: float = Field(strict=True, gt=0, le=1e6)
    """Rate in GB/s (1e9 bytes) where the links have room for it."""
    duration_s: float = Field(strict=True, gt=0, le=1e7)
    """How long it takes at that rate."""
    start_s: float = Field(0.0, strict=True, ge=0, le=1e9)
    """When it starts."""
    every_s: float | None = Field(None, strict=True, ge=1e-3, le=1e9)
    """Again and again, so long from start to start; by default once."""
    replica: int | None = Field(None, strict=True, ge=0)
    """At one replica alone, counted from 0; by default at each."""
    owner: str = Field("background", pattern="^[a-z][a-z0-9_]*$")
    """In whose name the bytes are counted."""

    @model_validator(mode="after")
    def _check(self) -> BackgroundConfig:
        if self.every_s is not None and self.every_s < self.duration_s:
            raise ValueError(f"every_s ({self.every_s:g}) must be at least duration_s ({self.duration_s:g})")
        if self.owner == "step":
            raise ValueError("owner: step is the engine's own; take another name")
        return self

    @property
    def flow(self) -> Background:
        """The same in whole bytes and nanoseconds."""
        return Background(
            owner=self.owner,
            route=self.route,
            num_bytes=round(self.gb_per_s * _GB * self.duration_s),
            bytes_per_s=max(round(self.gb_per_s * _GB), 1),
            start_ns=round(self.start_s * NS_PER_S),
            every_ns=None if self.every_s is None else round(self.every_s * NS_PER_S),
            replica=self.replica,
        )


class LinksConfig(BaseModel):
    """Links of each GPU, in GB/s (1e9 bytes) one way; by default the vendor's figures from the profile."""

    model_config = _STRICT

    hbm: float | None = Field(None, strict=True, gt=0, le=1e6)
    """GPU memory, reads and writes together."""
    pcie_h2d: float | None = Field(None, strict=True, gt=0, le=1e6)
    """Host memory to the GPU."""
    pcie_d2h: float | None = Field(None, strict=True, gt=0, le=1e6)
    """The GPU to host memory."""
    nvlink_out: float | None = Field(None, strict=True, gt=0, le=1e6)
    """To other GPUs."""
    nvlink_in: float | None = Field(None, strict=True, gt=0, le=1e6)
    """From other GPUs."""
    nic_out: float | None = Field(None, strict=True, gt=0, le=1e6)
    """To the network."""
    nic_in: float | None = Field(None, strict=True, gt=0, le=1e6)
    """From the network."""
    disk: float | None = Field(None, strict=True, gt=0, le=1e6)
    """The disk's bandwidth for each GPU, reads and writes together; profiles know of no disk."""
    latency_us: float = Field(0.0, strict=True, ge=0, le=1e9)
    """What each transfer of the engine takes before its first byte."""
    background: tuple[BackgroundConfig, ...] = ()
    """What others send: a list of {route: load, gb_per_s: 20, duration_s: 10, start_s: 0, every_s: 60}."""

    @property
    def bytes_per_s(self) -> dict[str, float]:
        """The bandwidths that are given, by link."""
        given = self.model_dump(exclude={"latency_us", "background"}, exclude_none=True)
        return {name: gb_per_s * _GB for name, gb_per_s in given.items()}

    def check(self, replicas: int, routes: Iterable[str]) -> None:
        """Raise ValueError where a field does not act, if the engines themselves send transfers on `routes`."""
        routes = set(routes)
        for number, flow in enumerate(self.background):
            if flow.replica is not None and flow.replica >= replicas:
                raise ValueError(
                    f"links.background.{number}.replica: {flow.replica} is not there; they are 0 to {replicas - 1}"
                )
        used = {link for route in routes | {flow.route for flow in self.background} for link in ROUTES[route]}
        for name in self.bytes_per_s:
            if name not in used:
                raise ValueError(f"links.{name}: nothing in this scenario moves over it; leave it out")
        if self.latency_us and not routes:
            raise ValueError("links.latency_us: no engine of this scenario makes transfers; leave it out")
