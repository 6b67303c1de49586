"""How long bytes take between tiers, where nothing else is on the links but what the engine itself has asked for."""

from __future__ import annotations

from dataclasses import dataclass

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Rates:
    """Bandwidths of the links of one GPU [bytes/s]; `latency_ns` before the first byte. None: there is no disk.

    A disk is read through host memory in pieces, so both links carry its bytes at once.
    """

    load_bytes_per_s: float
    offload_bytes_per_s: float
    disk_bytes_per_s: float | None = None
    latency_ns: int = 0

    def load_ns(
        self, host_bytes: int, disk_bytes: int = 0, queued_bytes: int = 0, queued_disk_bytes: int = 0
    ) -> float:
        """Until so many bytes from host memory and from disk are in HBM, behind those that are queued."""
        if not host_bytes and not disk_bytes:
            return 0.0
        seconds = (queued_bytes + host_bytes + disk_bytes) / self.load_bytes_per_s
        if disk_bytes:
            assert self.disk_bytes_per_s is not None
            seconds = max(seconds, (queued_disk_bytes + disk_bytes) / self.disk_bytes_per_s)
        return self.latency_ns + _NS * seconds

    def offload_ns(self, num_bytes: int) -> float:
        """Until so many bytes are in host memory."""
        return self.latency_ns + _NS * num_bytes / self.offload_bytes_per_s if num_bytes else 0.0
