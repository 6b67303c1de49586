"""The links of one GPU and its host, with a profile's bandwidths, and the paths that transfers take over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sim.errors import ConfigError
from sim.links.fabric import Fabric
from sim.links.link import Link
from sim.profile import Device

Path = tuple[Link, ...]


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
    def load(self) -> Path:
        """Host memory to HBM: reload, prefetch, weights."""
        return (self.pcie_h2d, self.hbm)

    @property
    def offload(self) -> Path:
        """HBM to host memory."""
        return (self.hbm, self.pcie_d2h)

    @property
    def copy(self) -> Path:
        """HBM to HBM on one GPU: read and written."""
        return (self.hbm, self.hbm)

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
