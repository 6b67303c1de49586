"""All-reduce among the GPUs of one node."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sim.curves.term import Curve, Float, floats


class CommCurve(Curve):
    """Measured times at message sizes, log-log between them; beyond the largest, by its bandwidth."""

    message_bytes: dict[int, tuple[float, ...]]
    time_s: dict[int, tuple[float, ...]]

    def seconds(self, gpus: int, message_bytes: ArrayLike) -> Float:
        size = np.maximum(floats(message_bytes), 1.0)
        known = floats(self.message_bytes[gpus])
        times = floats(self.time_s[gpus])
        inside = np.exp(np.interp(np.log(size), np.log(known), np.log(times)))
        return np.where(size > known[-1], times[-1] * size / known[-1], inside)
