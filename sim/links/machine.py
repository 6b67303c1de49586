"""The links of one GPU and its host, with a profile's bandwidths, and the paths that transfers take over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from sim.errors import ConfigError
from sim.links.fabric import Fabric
from sim.links.link import Link
from sim.profile import Device

Path = tuple[Link, ...]

ROUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "load": ("pcie_h2d", "hbm"),
    "offload": ("hbm", "pcie_d2h"),
    "copy": ("hbm", "hbm"),
    "disk_load": ("disk", "pcie_h2d", "hbm"),
    "disk_store": ("disk",),
    "nvlink_send": ("hbm", "nvlink_out"),
    "nvlink_receive": ("nvlink_in", "hbm"),
    "nic_send": ("hbm", "nic_out"),
    "nic_receive": ("nic_in", "hbm"),
}
"""Links by route: host memory to HBM, back, within HBM (read and written), disk to HBM, host memory to disk, others."""


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """One direction a link, but for HBM and disk, where reads and writes share one. None: there is no such link."""

    hbm: Link
    pcie_h2d: Link
    pcie_d2h: Link
    nvlink_out: Link | None = None
    nvlink_in: Link | None = None
    nic_out: Link | None = None
    nic_in: Link | None = None
    disk: Link | None = None

    @property
    def links(self) -> dict[str, Link]:
        """Those that are there, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: link for name, link in named if link is not None}

    @property
    def load(self) -> Path:
        """Host memory to HBM: reload, prefetch, weights."""
        return self.path("load")

    @property
    def offload(self) -> Path:
        """HBM to host memory."""
        return self.path("offload")

    @property
    def copy(self) -> Path:
        """HBM to HBM on one GPU: read and written."""
        return self.path("copy")

    def path(self, route: str) -> Path:
        """The links of a route of this GPU; ConfigError names a link that it lacks.

        A disk is read through host memory in pieces that follow each other, as by GPUDirect Storage or a staging
        buffer: all links carry the bytes at once, at the rate of the slowest.
        """
        names = ROUTES[route]
        links = [getattr(self, name) for name in names]
        if None in links:
            missing = names[links.index(None)]
            raise ConfigError(f"{route} needs a link that is not there; give links.{missing} in GB/s")
        return tuple(links)

    def send(self, other: Machine) -> Path:
        """This GPU's HBM to another's: NVLink where both have it, else the network, else through host memory."""
        if self.nvlink_out is not None and other.nvlink_in is not None:
            between: Path = (self.nvlink_out, other.nvlink_in)
        elif self.nic_out is not None and other.nic_in is not None:
            between = (self.nic_out, other.nic_in)
        else:
            between = (self.pcie_d2h, other.pcie_h2d)
        return (self.hbm, *between, other.hbm)


def add_machine(
    fabric: Fabric, name: str, device: Device, measured: Mapping[str, float] | None = None
) -> Machine:
    """Add a GPU's links, named `name.hbm`, `name.pcie_h2d` and so on, at the vendor's bandwidths.

    `measured` gives bandwidths [bytes/s] that are known better, by link ("hbm", "pcie_h2d", ..., "disk"). There is
    a disk only where it is among them: profiles do not know it.
    """
    bandwidths: dict[str, float | None] = {
        "hbm": device.hbm_bytes_per_s,
        "pcie_h2d": device.pcie_bytes_per_s,
        "pcie_d2h": device.pcie_bytes_per_s,
        "nvlink_out": device.nvlink_bytes_per_s,
        "nvlink_in": device.nvlink_bytes_per_s,
        "nic_out": device.nic_bytes_per_s,
        "nic_in": device.nic_bytes_per_s,
        "disk": None,
    }
    for link, bytes_per_s in (measured or {}).items():
        if link not in bandwidths:
            raise ConfigError(f"{name}: no link {link!r}; there are {', '.join(bandwidths)}")
        bandwidths[link] = bytes_per_s
    return Machine(
        **{
            link: fabric.add(f"{name}.{link}", bytes_per_s)
            for link, bytes_per_s in bandwidths.items()
            if bytes_per_s is not None
        }
    )
