"""The host's share of a step: what it adds to the GPU's work, and the least a step can take because of it."""

from __future__ import annotations

from dataclasses import dataclass

from sim.profile import HostOverhead

_NS = 1e9


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host overhead [ns] of one model's steps.

    Overhead (launch or replay, gaps between layers, hand-over of each sequence) is always added. The host's
    own work (scheduling, preparing inputs, output) runs beside the GPU under async scheduling, and then
    only sets the least that a step can take; without it, it comes on top.
    """

    overhead_base_ns: float
    overhead_seq_ns: float
    cpu_base_ns: float
    cpu_seq_ns: float
    token_ns: float
    call_ns: float
    pieces_ns: float
    hidden: bool

    @classmethod
    def of(cls, host: HostOverhead | None, num_layers: int, *, async_scheduling: bool) -> HostTime:
        host = host or HostOverhead(base_s=0.0, source="none fitted")
        return cls(
            overhead_base_ns=_NS * (host.base_s + host.per_layer_s * num_layers),
            overhead_seq_ns=_NS * host.per_seq_s,
            cpu_base_ns=_NS * host.cpu_base_s,
            cpu_seq_ns=_NS * host.cpu_per_seq_s,
            token_ns=_NS * host.per_token_s,
            call_ns=_NS * host.call_s,
            pieces_ns=_NS * host.piece_s * num_layers,
            hidden=async_scheduling,
        )

    def overhead_ns(self, sequences: int) -> float:
        """Return what a step takes longer than its kernels."""
        overhead = self.overhead_base_ns + self.overhead_seq_ns * sequences
        return overhead if self.hidden else overhead + self._cpu_ns(sequences)

    def floor_ns(self, sequences: int) -> float:
        """Return the least a step takes, whatever the GPU does."""
        return self.overhead_base_ns + self.overhead_seq_ns * sequences + self._cpu_ns(sequences)

    def _cpu_ns(self, sequences: int) -> float:
        return self.cpu_base_ns + self.cpu_seq_ns * sequences
