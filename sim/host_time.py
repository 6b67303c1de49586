"""The host's share of a step: what it adds to the GPU's work, and the least a step can take because of it."""

from __future__ import annotations

from dataclasses import dataclass

from sim.profile import HostOverhead

_NS = 1e9


@dataclass(frozen=True, slots=True)
class HostTime:
    """Host overhead [ns] of one model's steps.

    With async scheduling the host prepares the next step while the GPU works on this one: a step takes at
    least the host's own time, and only the gaps between layers and the hand-over of each sequence are
    added. Without it, the host's time comes on top.
    """

    base_ns: float
    layers_ns: float
    seq_ns: float
    token_ns: float
    hidden: bool

    @classmethod
    def of(cls, host: HostOverhead | None, num_layers: int, *, async_scheduling: bool) -> HostTime:
        if host is None:
            return cls(0.0, 0.0, 0.0, 0.0, async_scheduling)
        return cls(
            base_ns=_NS * host.base_s,
            layers_ns=_NS * host.per_layer_s * num_layers,
            seq_ns=_NS * host.per_seq_s,
            token_ns=_NS * host.per_token_s,
            hidden=async_scheduling,
        )

    def overhead_ns(self, sequences: int) -> float:
        """Return what a step takes longer than its kernels."""
        return self.layers_ns + self.seq_ns * sequences + (0.0 if self.hidden else self.base_ns)

    def floor_ns(self, sequences: int) -> float:
        """Return the least a step takes, whatever the GPU does."""
        return self.base_ns + self.seq_ns * sequences if self.hidden else 0.0
