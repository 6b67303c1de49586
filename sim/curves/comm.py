"""All-reduce among the GPUs of one node."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from sim.curves.term import Count, Curve, Float, Seconds, floats


class CommCurve(Curve):
    """Measured times per number of GPUs, a power law between two sizes; beyond the largest, its bandwidth.

    The rows are the engine's own dispatch inside a CUDA graph: its custom kernel up to the size that it
    supports, NCCL for larger messages (from about 8 MiB both take the same time). A message takes no longer than a
    larger one, whose kernel could take it: on B200 the rows have 26 us for 256 and 512 KiB among eight GPUs and 17 us
    for 1 MiB, and the longer times do not show in served steps (Llama-70B, TP 8, 32 sequences).
    """

    message_bytes: dict[Count, tuple[Annotated[float, Field(ge=1, le=1e15)], ...]]
    time_s: dict[Count, tuple[Seconds, ...]]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.time_s or self.message_bytes.keys() != self.time_s.keys():
            raise ValueError("message_bytes and time_s: the same numbers of GPUs are needed")
        for gpus, sizes in self.message_bytes.items():
            if not sizes or len(sizes) != len(self.time_s[gpus]) or any(b <= a for a, b in pairwise(sizes)):
                raise ValueError(f"message_bytes.{gpus}: increasing sizes are needed, one time for each")
        return self

    def seconds(self, gpus: int, message_bytes: ArrayLike) -> Float:
        size = np.maximum(floats(message_bytes), 1.0)
        known = floats(self.message_bytes[gpus])
        times = np.minimum.accumulate(floats(self.time_s[gpus])[::-1])[::-1]
        inside = np.exp(np.interp(np.log(size), np.log(known), np.log(times)))
        return np.where(size > known[-1], times[-1] * size / known[-1], inside)
