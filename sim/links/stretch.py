"""What an engine step costs where other flows take some of the HBM bandwidth.

A step is a succession of phases (all of it as one, or kernel by kernel). Each overlaps its compute with its memory
traffic as the roofline says (Williams, Waterman and Patterson, CACM 52(4), 2009), so that with a share of the HBM
bandwidth W

    phase(share) = max(compute, bytes / (share W))
    step(share)  = overhead + sum of phase(share)

The price of a step that runs alone is the cost model's. What is added to it is the difference to share 1:

    step(share) = alone + max(sum of (phase(share) - phase(1)) - slack, 0)

which is nothing at all, bit for bit, at share 1, and whatever the share as long as memory stays hidden behind
compute. `compute_s` may be the time of arithmetic alone or the whole time on the GPU: a measured phase that is bound
by memory already takes at least bytes / W, and only what exceeds it counts. `slack_s` is time that the GPU waits for
the host within the step: a GPU that finishes later waits less.

One phase for the whole step is the lower end: the traffic of its attention may hide behind the arithmetic of its
GEMMs, behind launches, and behind the difference between what kernels reach and W, if that is the vendor's figure.
Kernels that run one after the other hide less. `in_turn` is the upper end: nothing hides, all bytes wait. Kernel by
kernel, with a phase for each, lies between. The share is that at the step's start: a change within the step acts
from the next one on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine.clock import NS_PER_S

Float = NDArray[np.float64]


def in_turn(busy_s: float, hbm_bytes: float, hbm_bytes_per_s: float) -> list[tuple[float, float]]:
    """Phases of a step whose GPU time falls into traffic, which stretches, and a rest that does not."""
    return [(0.0, hbm_bytes), (max(busy_s - hbm_bytes / hbm_bytes_per_s, 0.0), 0.0)]


def stretched_ns(
    alone_ns: int,
    phases: Sequence[tuple[float, float]],
    share: float,
    hbm_bytes_per_s: float,
    slack_s: float = 0.0,
) -> int:
    """Duration of one step of `phases` (compute seconds, bytes on HBM) that has `share` (0 to 1] of the HBM."""
    if share == 1.0:
        return alone_ns
    longer_s = 0.0
    for compute_s, hbm_bytes in phases:
        memory_s = hbm_bytes / hbm_bytes_per_s
        longer_s += max(compute_s, memory_s / share) - max(compute_s, memory_s)
    return alone_ns + round(NS_PER_S * max(longer_s - slack_s, 0.0))


def stretched_window_ns(
    alone_ns: NDArray[np.int64],
    phases: Sequence[tuple[Float | float, Float | float]],
    share: float,
    hbm_bytes_per_s: float,
    slack_s: Float | float = 0.0,
) -> NDArray[np.int64]:
    """The same for successive steps, bit for bit; a number in a phase stands for all of them."""
    if share == 1.0:
        return alone_ns
    longer_s: Float = np.zeros(alone_ns.shape)
    for compute_s, hbm_bytes in phases:
        memory_s = hbm_bytes / hbm_bytes_per_s
        longer_s += np.maximum(compute_s, memory_s / share) - np.maximum(compute_s, memory_s)
    return alone_ns + np.rint(NS_PER_S * np.maximum(longer_s - slack_s, 0.0)).astype(np.int64)
